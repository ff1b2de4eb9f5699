"""Trackers that hand the numbers to a service: wandb, mlflow, swanlab. All have an offline mode."""

import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.run.tracking.tracker import Metrics, TrackedRun, TrackedSample, Tracker

_PROJECT = "roll"


class WandbTracker(Tracker):
    """Weights & Biases. `mode: offline` writes below `<directory>/wandb` for a later `wandb sync`. W&B never rewrites a
    step: steps that a resumed run does again keep their first values, which are the same."""

    def __init__(self, run: TrackedRun, settings: Mapping[str, Any]):
        import wandb  # pyright: ignore[reportMissingImports]

        remaining = dict(settings)
        login = {"key": remaining.pop("api_key", None), "host": remaining.pop("host", None)}
        if login["key"] and remaining.get("mode") not in ("offline", "disabled"):
            wandb.login(**{name: value for name, value in login.items() if value})
        directory = Path(remaining.pop("log_dir", None) or run.directory)
        directory.mkdir(parents=True, exist_ok=True)
        options = {"project": _PROJECT, "name": run.name, **remaining}
        run_id = _run_id(run, "wandb")
        self._table: Any = wandb.Table
        self._run = wandb.init(dir=str(directory), id=run_id, resume="allow", config=dict(run.config), **options)

    def log(self, step: int, metrics: Metrics) -> None:
        self._run.log(dict(metrics), step=step)

    def samples(self, step: int, kind: str, samples: Sequence[TrackedSample]) -> None:
        table = self._table(columns=TrackedSample.columns(), data=[sample.cells() for sample in samples])
        self._run.log({f"samples/{kind}": table}, step=step)

    def summary(self, values: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(values))

    def close(self, failed: bool = False) -> None:
        self._run.finish(exit_code=int(failed))


class SwanlabTracker(Tracker):
    """SwanLab. `mode: offline` or `local` writes below `<directory>/swanlog`. It has no place for a summary."""

    def __init__(self, run: TrackedRun, settings: Mapping[str, Any]):
        import swanlab  # pyright: ignore[reportMissingImports]

        remaining = dict(settings)
        login = dict(remaining.pop("login_kwargs", None) or {})
        if api_key := remaining.pop("api_key", None):
            login["api_key"] = api_key
        online = remaining.get("mode") in (None, "cloud", "online")
        if login and online:
            swanlab.login(**login)
        log_dir = remaining.pop("log_dir", None)
        directory = Path(remaining.pop("logdir", None) or log_dir or run.directory / "swanlog")
        directory.mkdir(parents=True, exist_ok=True)
        name = remaining.pop("name", None)
        options = {"project": _PROJECT, "experiment_name": name or run.name, **remaining}
        if online:  # only the service can continue an experiment
            options |= {"id": _run_id(run, "swanlab"), "resume": "allow"}
        swanlab.init(logdir=str(directory), config=dict(run.config), **options)
        self._swanlab = swanlab

    def log(self, step: int, metrics: Metrics) -> None:
        self._swanlab.log(dict(metrics), step=step)

    def samples(self, step: int, kind: str, samples: Sequence[TrackedSample]) -> None:
        table = self._swanlab.echarts.Table()
        table.add(TrackedSample.columns(), [sample.cells() for sample in samples])
        self._swanlab.log({f"samples/{kind}": table}, step=step)

    def close(self, failed: bool = False) -> None:
        self._swanlab.finish()


class MlflowTracker(Tracker):
    """MLflow. Without `tracking_uri` (or MLFLOW_TRACKING_URI) it writes a file store in `<directory>/mlruns`: offline.

    A resumed run continues the same MLflow run; a step that is run again is recorded twice, with equal values."""

    def __init__(self, run: TrackedRun, settings: Mapping[str, Any]):
        uri = settings.get("tracking_uri") or os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            # The store makes its own root, and takes one that exists for a store: so it is not created here.
            uri = (Path(settings.get("log_dir") or run.directory).absolute() / "mlruns").as_uri()
            Path(run.directory).mkdir(parents=True, exist_ok=True)
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow >= 3.13 refuses it otherwise
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read at import

        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._metric = Metric
        self._client = MlflowClient(tracking_uri=uri)
        self._run_id = self._continue(run) or self._start(run, settings)
        _run_id_file(run, "mlflow").write_text(self._run_id)

    def _start(self, run: TrackedRun, settings: Mapping[str, Any]) -> str:
        experiment_name = settings.get("experiment_name") or settings.get("project") or _PROJECT
        experiment = self._client.get_experiment_by_name(experiment_name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(experiment_name)
        name = settings.get("run_name") or settings.get("name") or run.name
        tags = settings.get("tags") or {}
        tags = dict(tags) if isinstance(tags, Mapping) else dict.fromkeys(tags, "true")
        run_id = self._client.create_run(experiment_id, run_name=name, tags=tags).info.run_id
        self._client.log_dict(run_id, dict(run.config), "config.json")
        return run_id

    def _continue(self, run: TrackedRun) -> str | None:
        file = _run_id_file(run, "mlflow")
        if not run.resumed or not file.exists():
            return None
        self._client.update_run(file.read_text(), status="RUNNING")
        return file.read_text()

    def log(self, step: int, metrics: Metrics) -> None:
        now_ms = int(time.time() * 1000)
        rows = [self._metric(_mlflow_name(name), value, now_ms, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=rows)

    def samples(self, step: int, kind: str, samples: Sequence[TrackedSample]) -> None:
        """Logs samples in the format of MLflow's tables, one file per step: MLflow's own would need pandas."""
        table = {"columns": TrackedSample.columns(), "data": [sample.cells() for sample in samples]}
        self._client.log_dict(self._run_id, table, f"samples/{_mlflow_name(kind)}/step_{step:06d}.json")

    def summary(self, values: Mapping[str, Any]) -> None:
        self._client.log_dict(self._run_id, dict(values), "summary.json")

    def close(self, failed: bool = False) -> None:
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")


def _mlflow_name(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)


def _run_id_file(run: TrackedRun, service: str) -> Path:
    run.directory.mkdir(parents=True, exist_ok=True)
    return run.directory / f".{service}_run_id"


def _run_id(run: TrackedRun, service: str) -> str:
    """The id under which the service knows this run: kept beside the metrics, new for a run that starts anew.

    Example: "9f86d081884c7d659a2fe"; 21 characters, as older SwanLab servers demand."""
    file = _run_id_file(run, service)
    if not (run.resumed and file.exists()):
        file.write_text(secrets.token_hex(11)[:21])
    return file.read_text()
