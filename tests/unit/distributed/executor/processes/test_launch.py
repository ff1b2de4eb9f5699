"""What is said when Ray's own processes end with this one."""

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.distributed.executor.processes import launch
from roll.distributed.executor.processes.launch import RayRuntime
from roll.errors import WorkerError


class Cleaner:
    def __init__(self, directory: str, logs: Path | None):
        self.texts: list[str] = []

    def report_dead(self, texts: dict[int, str]) -> None:
        self.texts += texts.values()

    def nothing_to_say(self) -> None:
        self.texts.clear()


def test_what_ends_with_an_interrupted_process_is_no_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second Ctrl-C skips `shutdown`: Ray ends its processes when Python ends."""
    at_exit: list[Callable[[], Any]] = []
    lost: list[WorkerError] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(launch, "CleanerProcess", Cleaner)
    monkeypatch.setattr(launch.ray, "init", lambda **_: None)
    monkeypatch.setattr(launch.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(launch, "vital_processes", lambda _: {7: "Ray's raylet"})
    monkeypatch.setattr(launch, "when_one_dies", lambda *_: None)
    monkeypatch.setattr(atexit, "register", at_exit.append)
    runtime = RayRuntime(on_lost=lost.append)
    cleaner = runtime._cleaner
    assert isinstance(cleaner, Cleaner) and len(cleaner.texts) == 1
    for each in reversed(at_exit):
        each()
    runtime._lost("Ray's raylet on this host ended (pid 7, exit code 0)")
    assert (cleaner.texts, lost, caplog.records, runtime.is_lost) == ([], [], [], False)
