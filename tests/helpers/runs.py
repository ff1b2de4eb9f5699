"""Whole runs as a user starts them: the example script in a process of its own, on real Ray, DeepSpeed and engines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.helpers.pages import metric_entries, unlisted
from tests.helpers.sockets import listening, open_to_others, unix_sockets

if TYPE_CHECKING:
    import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
START_LIMIT_S = 400  # until the first step, on a machine that is busy with other things
MEASURED = ("goodput/", "busy/", "throughput/", "memory/", "mfu/", "sync/")  # by a clock, or by this machine
END_LIMIT_S = 120.0  # from a fault, or a signal, to the end of the run, on such a machine


@dataclass
class Run:
    """One run of an example. Its processes are those that carry the run's mark in their environment."""

    process: subprocess.Popen[str]
    output_dir: Path
    log: Path
    mark: str
    temporary: Path  # where its temporary files go, and those of no other
    leftovers: list[int] = field(default_factory=list)
    own_metrics: set[str] = field(default_factory=set)  # of code that is not the repository's

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")  # a character may be there in part

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        """Rows of metrics.jsonl by steps done, without their texts."""
        path = self.output_dir / "logs" / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be there in part
        rows = [json.loads(line) for line in lines]
        return {row["step"]: {name: row[name] for name in row.keys() - {"time", "bound"}} for row in rows}

    @property
    def unlisted_metrics(self) -> list[str]:
        """What it recorded and docs/metrics.md does not list."""
        names = {name for row in self.metrics.values() for name in row if name != "step"}
        return unlisted(names - self.own_metrics, metric_entries())

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while step not in self.metrics:
            assert self.process.poll() is None, f"the run ended before step {step}:\n{self.text}"
            assert time.monotonic() < deadline, f"step {step} did not come:\n{self.text}"
            time.sleep(0.1)

    def wait(self, timeout_s: float = START_LIMIT_S) -> int:
        """The exit code. Fails if the run does not end in time."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the run did not end within {timeout_s} s:\n{self.text}") from None

    def finished(self) -> Run:
        """The run itself, when it has ended well and left no process behind."""
        assert self.wait() == 0, self.text
        self.assert_all_gone()
        return self

    def processes(self, **environment: str) -> list[psutil.Process]:
        """All living processes of the run that have these variables, workers and Ray's own, found by the mark they
        inherited."""
        wanted = {"ROLL_TEST_RUN": self.mark} | environment
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if wanted.items() <= process.environ().items() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def assert_nothing_open_to_others(self) -> None:
        """No process of the run listens where another machine could reach it."""
        driver = psutil.Process(self.process.pid)
        family = [driver, *driver.children(recursive=True)]
        assert len(listening(family)) > len(self.processes(ROLL_ROLE="actor_train"))
        assert open_to_others(family) == {}

    def assert_sockets_in_its_directory(self) -> None:
        """The files on which processes of the run listen are in the reach of nobody else."""
        driver = psutil.Process(self.process.pid)
        directory = self.worker("actor_train").environ()["ROLL_RUNTIME_DIRECTORY"]
        sockets = unix_sockets([driver, *driver.children(recursive=True)])
        assert sockets and all(path.startswith(f"{directory}/") for path in sockets), sockets

    def assert_all_gone(self, within_s: float = 60) -> None:
        deadline = time.monotonic() + within_s
        while (alive := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not alive, f"processes of the run are still there: {alive}"

    def worker(self, role: str) -> psutil.Process:
        """A process that serves this role."""
        return self.processes(ROLL_ROLE=role)[0]

    def kill(self) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()


def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that all test processes of this session have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@contextmanager
def run_starter(directory: Path, temporary: Path | None = None) -> Iterator[Callable[..., Run]]:
    """start(data, "tiny_sort", "max_steps=5", name="a") -> Run. Whatever is still alive at the end is killed, and what
    it recorded must be in docs/metrics.md. `example` is a folder of examples/, or a path; `pipeline` says which script
    starts it, or is one. With `max_restarts` it is `roll run` that does, and `process` the supervisor."""
    runs: list[Run] = []
    temporary = temporary or Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))  # short: Ray's sockets go below

    def start(
        data: Path,
        config_name: str,
        *overrides: str,
        name: str = "run",
        example: str | Path = "tiny-sort",
        pipeline: str | Path = "rlvr",
        max_restarts: int = 0,
    ) -> Run:
        output_dir, mark = directory / name, f"{os.getpid()}-{len(runs)}-{directory.name}"
        log = directory / f"{name}.log"
        directories = {f"TINY_{task}_DIR": str(data) for task in ("SORT", "FROZEN_LAKE", "COUNT")}
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        environment = os.environ | directories | {"TMPDIR": str(temporary), "ROLL_TEST_RUN": mark, "PYTHONPATH": path}
        script = pipeline if isinstance(pipeline, Path) else f"examples/start_{pipeline}_pipeline.py"
        words = [str(script), "--config_path", str(example), "--config_name", config_name]
        if max_restarts:
            words = ["-m", "roll", "run", f"examples/{example}/{config_name}", "--max_restarts", str(max_restarts)]
        command = [
            sys.executable,
            *words,
            f"output_dir={output_dir}",
            f"logging_dir={output_dir}/logs",
            *overrides,
        ]
        with log.open("w") as stream:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        runs.append(Run(process, output_dir, log, mark, temporary))
        return runs[-1]

    try:
        yield start
    finally:
        for run in runs:
            if run.process.poll() is None:
                run.process.send_signal(signal.SIGKILL)
                run.process.wait()
            run.kill()
        shutil.rmtree(temporary, ignore_errors=True)
    assert {name for run in runs for name in run.unlisted_metrics} == set(), "add their rows to docs/metrics.md"


def comparable(row: dict[str, float]) -> dict[str, float]:
    """What must be equal between two runs of the same seed: everything but times, and what is made of them."""
    return {name: value for name, value in row.items() if "time" not in name and not name.startswith(MEASURED)}
