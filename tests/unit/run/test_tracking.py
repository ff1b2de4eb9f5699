import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from roll.configs.checks.rollout import SAMPLE_TRACKERS
from roll.errors import ConfigError
from roll.run.tracking.build import TRACKERS, make_trackers, tracker_problems
from roll.run.tracking.local import read_metrics
from roll.run.tracking.tracker import TrackedSample, Tracker, Trackers
from roll.utils.imports import resolve

CONFIG = {"exp_name": "demo", "seed": 1, "system_envs": {"HF_TOKEN": "hf_abcdefgh"}}


def run(directory, steps, first_step=0, names=("jsonl",), **kwargs):
    trackers = make_trackers(names, kwargs, directory, CONFIG, first_step)
    for step in steps:
        trackers.log(step, {"rollout/reward_mean": step / 10})
    trackers.close()


def test_jsonl_has_one_line_per_step_that_is_on_disk_at_once(tmp_path):
    trackers = make_trackers(["jsonl"], {}, tmp_path, CONFIG)
    trackers.log(0, {"a/b": 0.5, "a/c": math.nan})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert datetime.fromisoformat(row.pop("time")).tzinfo == UTC
    assert row == {"step": 0, "a/b": 0.5, "a/c": None}
    trackers.summary({"reward_last": 0.5})
    trackers.close()
    assert json.loads((tmp_path / "summary.json").read_text()) == {"reward_last": 0.5}


def without_times(path):
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in path.read_text().splitlines()]


def test_a_resumed_jsonl_equals_that_of_an_unbroken_run_but_for_its_times(tmp_path):
    run(tmp_path / "unbroken", range(10))
    run(tmp_path / "resumed", range(7))  # the checkpoint was of step 5: steps 5 and 6 are run again
    with (tmp_path / "resumed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "rollo')  # and the run was killed while it wrote step 7
    run(tmp_path / "resumed", range(5, 10), first_step=5)
    resumed = without_times(tmp_path / "resumed" / "metrics.jsonl")
    assert resumed == without_times(tmp_path / "unbroken" / "metrics.jsonl")
    assert [row["step"] for row in resumed] == list(range(10))


def test_a_line_that_the_disk_takes_in_part_is_taken_back(tmp_path):
    """The limit is that of a process on the size of its files: the file system takes what fits, as a full disk does."""
    script = (
        "import resource, signal, sys\n"
        "from roll.run.tracking.build import make_trackers\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "trackers = make_trackers(['jsonl'], {}, sys.argv[1], {})\n"
        "trackers.log(1, {'a/b': 1.0})\n"
        "hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))\n"
        "trackers.log(2, {'a/b': 2.0})\n"
        "assert trackers.names == ()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
        "trackers.log(3, {'a/b': 3.0})\n"
        "trackers.close()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=120)
    assert without_times(tmp_path / "metrics.jsonl") == [{"step": step, "a/b": float(step)} for step in (1, 3)]


def test_a_new_run_puts_the_metrics_of_an_old_one_aside(tmp_path):
    for count in (2, 3, 1):
        run(tmp_path, range(count))
    lines = {path.name: len(path.read_text().splitlines()) for path in tmp_path.iterdir()}
    assert lines == {"metrics.1.jsonl": 2, "metrics.2.jsonl": 3, "metrics.jsonl": 1}


def test_read_metrics_merges_calls_for_one_step_and_brings_back_nan(tmp_path):
    trackers = make_trackers(["jsonl"], {}, tmp_path, CONFIG)
    trackers.log(0, {"val/reward_mean": 0.1})
    trackers.log(0, {"rollout/reward_mean": math.inf})
    trackers.log(1, {"rollout/reward_mean": 0.3})
    trackers.close()
    (step, first), last = read_metrics(tmp_path / "metrics.jsonl")
    assert (step, first["val/reward_mean"], math.isnan(first["rollout/reward_mean"])) == (0, 0.1, True)
    assert last == (1, {"rollout/reward_mean": 0.3})
    assert read_metrics(tmp_path / "absent.jsonl") == []


def test_stdout_prints_one_line_per_step(tmp_path, capsys):
    run(tmp_path, [3], names=["stdout"])
    assert capsys.readouterr().out == "step 3 rollout/reward_mean=0.3\n"


class Recording(Tracker):
    def __init__(self, fail_at: tuple[int, ...] = ()):
        self.steps: list[int] = []
        self.calls = 0
        self.fail_at = fail_at
        self.told: Mapping[str, Any] | None = None
        self.closed: bool | None = None

    def log(self, step, metrics):
        self.calls += 1
        if self.calls in self.fail_at:
            raise ConnectionError("service away")
        self.steps.append(step)

    def summary(self, values):
        self.told = values

    def close(self, failed=False):
        self.closed = failed


def test_a_tracker_that_fails_ends_nothing_and_is_told_of_once(caplog):
    good, bad = Recording(), Recording(fail_at=(3, 4))
    trackers = Trackers({"bad": bad, "good": good})
    seen = []
    for step in range(11):
        trackers.log(step, {"a/b": 1.0})
        seen.append(trackers.names)
    trackers.close(failed=True)
    assert (good.steps, good.closed) == (list(range(11)), True)
    assert bad.steps == [0, 1, 10], "left alone for two steps, then for four"
    assert seen == [("bad", "good")] * 2 + [("good",)] * 8 + [("bad", "good")]
    assert [record.getMessage() for record in caplog.records] == [
        "tracker bad failed at step 2, and the run continues. ConnectionError: service away"
    ]


def test_every_problem_of_the_tracker_settings_is_reported_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "wandb" else object())
    names = ["tensorbord", "wandb", "jsonl"]
    kwargs = {"projct": "x", "mlflow": {}, "jsonl": {"colour": 1}}
    with pytest.raises(ConfigError) as caught:
        make_trackers(names, kwargs, tmp_path, CONFIG)
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "track_with: there is no tracker 'tensorbord'",
        "tracker_kwargs.projct: no tracker of track_with (tensorbord, wandb, jsonl) knows it",
        "tracker_kwargs.mlflow: mlflow is not in track_with, so this would be ignored. Add it or remove this.",
        "tracker_kwargs.jsonl.colour: jsonl has no such setting",
        "track_with: wandb is not installed here. Install it: pip install wandb, or take it out.",
    ]
    assert "did you mean tensorboard?" in caught.value.problems[0]


def test_settings_without_a_name_go_to_the_trackers_that_know_them():
    assert tracker_problems(["stdout", "jsonl"], {"log_dir": "x"}) == []
    assert len(tracker_problems(["stdout"], {"log_dir": "x"})) == 1


def test_tensorboard_events_carry_step_and_value_and_a_resume_mark(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path, range(4), names=["tensorboard"])
    run(tmp_path, range(2, 5), first_step=2, names=["tensorboard"])
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    events = accumulator.Scalars("rollout/reward_mean")
    assert [event.step for event in events] == [0, 1, 2, 3, 4], "the mark made it forget the first steps 2 and 3"
    assert [event.value for event in events] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


def test_mlflow_offline_store_continues_one_run_over_a_resume(tmp_path):
    pytest.importorskip("mlflow", reason="mlflow (or mlflow-skinny) is not installed")
    from mlflow import MlflowClient

    run(tmp_path, range(3), names=["mlflow"], project="p")
    run(tmp_path, range(3, 5), first_step=3, names=["mlflow"], project="p")
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("p")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "demo"
    history = client.get_metric_history(found.info.run_id, "rollout/reward_mean")
    assert [(point.step, point.value) for point in history] == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    (config,) = (tmp_path / "mlruns").rglob("config.json")
    assert json.loads(config.read_text())["system_envs"] == {"HF_TOKEN": "***"}


class FakeService(ModuleType):
    """The documented calls of wandb and swanlab, recorded. It stands in for packages that are not installed here, so it
    proves that we call what their documentation says, not that the services accept it."""

    def __init__(self, name: str):
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def _record(self, name: str):
        return lambda *args, **kwargs: self.calls.append((name, args, kwargs))

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._record(name)

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for found, args, kwargs in self.calls if found == name]


class FakeWandb(FakeService):
    def init(self, **kwargs):
        self.calls.append(("init", (), kwargs))
        summary = SimpleNamespace(update=self._record("summary.update"))
        return SimpleNamespace(log=self._record("log"), finish=self._record("finish"), summary=summary)


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", module := FakeWandb("wandb"))
    return module


@pytest.fixture
def swanlab(monkeypatch):
    monkeypatch.setitem(sys.modules, "swanlab", module := FakeService("swanlab"))
    return module


def test_wandb_gets_login_redacted_config_steps_summary_and_exit_code(tmp_path, wandb):
    trackers = make_trackers(["wandb"], {"api_key": "sk-1", "project": "p", "tags": ["t"]}, tmp_path, CONFIG)
    trackers.log(3, {"a/b": 0.5})
    trackers.summary({"reward_last": 0.5})
    trackers.close(failed=True)
    assert wandb.of("login") == [((), {"key": "sk-1"})]
    ((_, init),) = wandb.of("init")
    assert len(init.pop("id")) == 21
    assert init == {
        "dir": str(tmp_path),
        "resume": "allow",
        "config": {"exp_name": "demo", "seed": 1, "system_envs": {"HF_TOKEN": "***"}},
        "project": "p",
        "name": "demo",
        "tags": ["t"],
    }
    assert wandb.of("log") == [(({"a/b": 0.5},), {"step": 3})]
    assert wandb.of("summary.update") == [(({"reward_last": 0.5},), {})]
    assert wandb.of("finish") == [((), {"exit_code": 1})]


def test_wandb_offline_needs_no_login(tmp_path, wandb):
    run(tmp_path, [0], names=["wandb"], mode="offline", api_key="sk-1")
    assert wandb.of("login") == []
    assert wandb.of("init")[0][1]["mode"] == "offline"


def test_a_resumed_run_keeps_its_id_and_a_new_run_gets_another(tmp_path, wandb):
    run(tmp_path, [0], names=["wandb"])
    run(tmp_path, [1], names=["wandb"], first_step=1)
    run(tmp_path, [0], names=["wandb"])
    first, resumed, new = (kwargs["id"] for _, kwargs in wandb.of("init"))
    assert first == resumed != new


def test_swanlab_takes_rolls_login_kwargs_and_logs_steps(tmp_path, swanlab):
    kwargs = {"login_kwargs": {"api_key": "sw-1"}, "project": "p", "logdir": str(tmp_path / "logs")}
    run(tmp_path, [3], names=["swanlab"], **kwargs)
    assert swanlab.of("login") == [((), {"api_key": "sw-1"})]
    ((_, init),) = swanlab.of("init")
    assert len(init.pop("id")) == 21
    assert init.pop("config")["system_envs"] == {"HF_TOKEN": "***"}
    expected = {"logdir": str(tmp_path / "logs"), "project": "p", "experiment_name": "demo", "resume": "allow"}
    assert init == expected
    assert swanlab.of("log") == [(({"rollout/reward_mean": 0.3},), {"step": 3})]
    assert swanlab.of("finish") == [((), {})]


def test_swanlab_offline_needs_no_login_and_no_id(tmp_path, swanlab):
    run(tmp_path, [0], names=["swanlab"], mode="offline", api_key="sw-1")
    assert swanlab.of("login") == []
    assert set(swanlab.of("init")[0][1]) == {"logdir", "config", "project", "experiment_name", "mode"}


def test_several_trackers_share_settings_and_a_named_mapping_wins(tmp_path, wandb, swanlab):
    run(tmp_path, [0], names=["wandb", "swanlab"], project="shared", swanlab={"project": "own"})
    assert wandb.of("init")[0][1]["project"] == "shared"
    assert swanlab.of("init")[0][1]["project"] == "own"


def test_a_key_on_the_command_line_is_masked_while_a_service_starts(tmp_path, wandb, monkeypatch):
    """wandb records sys.argv with the run."""
    monkeypatch.setattr(sys, "argv", given := ["start.py", "tracker_kwargs.api_key=sk-1234567890", "max_steps=5"])
    seen: list[list[str]] = []
    monkeypatch.setattr(wandb, "init", lambda **kwargs: seen.append(sys.argv), raising=False)
    make_trackers(["wandb"], {"api_key": "sk-1234567890"}, tmp_path, CONFIG)
    assert seen == [["start.py", "tracker_kwargs.api_key=***", "max_steps=5"]]
    assert sys.argv is given


SAMPLES = [
    TrackedSample("4", "math", "2 + 2", "**four**\n<b>4</b>", 1.0, "4", "stop", 3),
    TrackedSample("5", "math", "3 + 3", "", None, "", "failed", 0),
]
ROWS = [
    ["4", "math", "2 + 2", "**four**\n<b>4</b>", 1.0, "4", "stop", 3],
    ["5", "math", "3 + 3", "", None, "", "failed", 0],
]
COLUMNS = ["group", "domain", "prompt", "response", "reward", "ground_truth", "finish_reason", "response_tokens"]


def test_wandb_and_swanlab_get_samples_as_tables_of_the_step(tmp_path, wandb, swanlab):
    """Stand-ins with the documented calls; the real packages match the requirements ofked offline below."""
    tables: list[object] = []
    swanlab.echarts = SimpleNamespace(Table=lambda: SimpleNamespace(add=lambda *given: tables.append(given)))
    trackers = make_trackers(["wandb", "swanlab"], {}, tmp_path, CONFIG)
    trackers.samples(3, "val.hard", SAMPLES)
    trackers.log(3, {"a/b": 0.5})
    trackers.close()
    assert wandb.of("Table") == [((), {"columns": COLUMNS, "data": ROWS})]
    assert [(list(args[0]), kwargs) for args, kwargs in wandb.of("log")] == [
        (["samples/val.hard"], {"step": 3}),
        (["a/b"], {"step": 3}),
    ]
    assert tables == [(COLUMNS, ROWS)]
    assert [list(args[0]) for args, _ in swanlab.of("log")] == [["samples/val.hard"], ["a/b"]]


def test_mlflow_gets_samples_as_the_json_of_a_table(tmp_path):
    pytest.importorskip("mlflow")
    trackers = make_trackers(["mlflow"], {}, tmp_path, CONFIG)
    trackers.samples(3, "val.a/b c", SAMPLES)
    trackers.close()
    (found,) = (tmp_path / "mlruns").rglob("samples/**/step_000003.json")
    assert json.loads(found.read_text()) == {"columns": COLUMNS, "data": ROWS}


def test_tensorboard_gets_samples_as_a_text_that_is_no_markup(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator

    trackers = make_trackers(["tensorboard"], {}, tmp_path, CONFIG)
    trackers.samples(3, "train", SAMPLES)
    trackers.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={TENSORS: 0}).Reload()
    assert events.SummaryMetadata("samples/train/text_summary").plugin_data.plugin_name == "text"
    (event,) = events.Tensors("samples/train/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert event.step == 3
    assert "    math, group 4: reward 1, stop\n" in text and "    math, group 5: failed, failed\n" in text
    assert {line[:4] for line in text.splitlines() if line} == {"    ", "---"}  # indented, or a rule between samples


def test_the_trackers_that_take_samples_are_those_that_the_settings_know():
    classes: dict[str, Any] = {name: resolve(row.path) for name, row in TRACKERS.items()}
    assert {name for name, each in classes.items() if each.samples is not Tracker.samples} == set(SAMPLE_TRACKERS)


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_the_real_service_works_offline_and_writes_no_secret(tmp_path, name):
    """In a process of its own: both start threads and services that outlive a run."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed; its documented calls are tested with a stand-in above")
    script = (
        "import sys\n"
        "from roll.run.tracking.build import make_trackers\n"
        "trackers = make_trackers([sys.argv[1]], {'mode': 'offline', 'api_key': 'sk-1234567890'}, sys.argv[2],\n"
        "                         {'system_envs': {'HF_TOKEN': 'hf_abcdefgh'}})\n"
        "from roll.run.tracking.tracker import TrackedSample\n"
        "sample = TrackedSample('4', 'math', '2 + 2', 'the answer is four', 1.0, '4', 'stop', 3)\n"
        "trackers.samples(0, 'val', [sample])\n"
        "trackers.log(0, {'rollout/reward_mean': 0.5})\n"
        "trackers.summary({'reward_last': 0.5})\n"
        "assert trackers.names == (sys.argv[1],)\n"
        "trackers.close()\n"
    )
    (tmp_path / "start.py").write_text(script)
    override = ["tracker_kwargs.api_key=sk-1234567890"] if name == "wandb" else []
    command = [sys.executable, str(tmp_path / "start.py"), name, str(tmp_path / "out"), *override]
    subprocess.run(command, check=True, timeout=120)
    contents = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert any(b"rollout/reward_mean" in content for content in contents)
    assert any(b"the answer is four" in content for content in contents)
    assert not any(secret in content for content in contents for secret in (b"sk-1234567890", b"hf_abcdefgh"))


def test_a_service_that_cannot_start_is_a_config_error_without_the_key(tmp_path, wandb, monkeypatch):
    def refuse(**kwargs):
        raise ConnectionError("bad key sk-1234567890")

    monkeypatch.setattr(wandb, "init", refuse, raising=False)
    with pytest.raises(ConfigError) as caught:
        make_trackers(["jsonl", "wandb"], {"wandb": {"api_key": "sk-1234567890"}}, tmp_path, CONFIG)
    assert str(caught.value) == "track_with: wandb cannot start. ConnectionError: bad key ***"
