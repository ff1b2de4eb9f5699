"""What is said when Ray's own processes end with this one."""

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roll.distributed.executor.processes import launch
from roll.distributed.executor.processes.launch import RayRuntime
from roll.errors import ConfigError, WorkerError


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


def test_a_raylet_that_lives_is_waited_for_longer_than_ray_does_and_one_that_is_gone_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "_START_POLL_S", 0.0)
    alive = {7: "Ray's raylet", 8: "Ray's gcs_server"}
    monkeypatch.setattr(launch, "vital_processes", lambda directory: alive)
    asked: list[tuple[str, str]] = []

    def get_node(gcs_address: str, node_id: str) -> str:
        asked.append((gcs_address, node_id))
        if len(asked) < 3 or node_id == "never":
            raise RuntimeError("no such node")
        return "node"

    monkeypatch.setattr(launch.services, "get_node", get_node)
    with launch._waiting_for_raylet("/tmp/roll-x"):
        assert launch.services.get_node("127.0.0.1:1", "n") == "node"
        assert asked == [("127.0.0.1:1", "n")] * 3
        del alive[7]
        with pytest.raises(RuntimeError, match="no such node"):
            launch.services.get_node("127.0.0.1:1", "never")
        assert len(asked) == 4
        alive[7] = "Ray's raylet"
        monkeypatch.setattr(launch, "_START_LIMIT_S", -1.0)
        with pytest.raises(RuntimeError, match="no such node"):
            launch.services.get_node("127.0.0.1:1", "never")
    assert launch.services.get_node is get_node


@pytest.mark.parametrize("address", ["nowhere", "ray://head:10001", "http://head/", "head:"])
def test_an_address_that_is_none_is_no_reason_to_try_again(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(launch.ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match="is not of the form host:port"):
        RayRuntime()
