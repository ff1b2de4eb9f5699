import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roll.distributed.executor.processes import worker_process as memory
from roll.distributed.executor.processes.worker_process import MemoryWatch
from roll.utils.worker_usage import TraceOptions, Usage
from tests.helpers.clock import Clock

NOTHING = Usage({}, {})
WATCH = MemoryWatch("actor_train-0")


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a resident set is read from /proc")
def test_the_peak_of_a_process_and_of_what_it_started_is_at_least_what_they_have() -> None:
    code = "import sys; taken = bytearray(b'x' * (64 << 20)); print(len(taken), flush=True); sys.stdin.read()"
    clock = Clock()
    watch = MemoryWatch("actor_infer-0", clock)
    before = watch.host_peak()
    assert before > 10 << 20
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        assert watch.host_peak() < before + (64 << 20), "it looks for others now and then"
        clock.now += 31
        assert watch.host_peak() >= before + (64 << 20)
        child.communicate()
    assert watch.host_peak() < before + (64 << 20), "of those that still run"


def test_a_process_without_a_context_on_a_gpu_has_no_peak_there(tmp_path: Path) -> None:
    usage = WATCH.add_to(NOTHING, TraceOptions(snapshots=str(tmp_path)))
    assert (usage.device_bytes, usage.device_name) == (None, "")
    assert usage.host_bytes > 0 or sys.platform != "linux"
    assert list(tmp_path.iterdir()) == []


def test_a_process_on_a_gpu_tells_its_peak_since_the_last_time_and_writes_snapshots_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    pictures = SimpleNamespace(
        _dump_snapshot=lambda path: told.append(("dump", path)),
        _record_memory_history=lambda max_entries: told.append("record"),
    )
    cuda = SimpleNamespace(
        memory=pictures,
        max_memory_allocated=lambda: 123,
        reset_peak_memory_stats=lambda: told.append("reset"),
        get_device_name=lambda: "NVIDIA H100 80GB HBM3",
    )
    monkeypatch.setattr(memory, "_device_in_use", lambda: cuda)
    usage = WATCH.add_to(NOTHING, TraceOptions())
    assert (usage.device_bytes, usage.device_name, told) == (123, "NVIDIA H100 80GB HBM3", ["reset"])
    told.clear()
    WATCH.add_to(NOTHING, TraceOptions(snapshots=str(tmp_path)))
    assert told == [("dump", str(tmp_path / "actor_train-0.pickle")), "record", "reset"]
