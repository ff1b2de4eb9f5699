import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from roll.distributed.executor.processes import memory
from roll.distributed.executor.processes.memory import host_peak, seen
from roll.utils.meter import Look, Usage

NOTHING = Usage(0.0, {}, {})


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a resident set is read from /proc")
def test_the_peak_of_a_process_and_of_what_it_started_is_at_least_what_they_have() -> None:
    code = "import sys; taken = bytearray(b'x' * (64 << 20)); print(len(taken), flush=True); sys.stdin.read()"
    before = host_peak()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        assert host_peak(str(child.pid)) >= psutil.Process(child.pid).memory_info().rss >= 64 << 20
        assert host_peak() >= before + (64 << 20)
        child.communicate()
    assert host_peak("999999999") == 0


def test_a_process_without_a_context_on_a_gpu_has_no_peak_there(tmp_path: Path) -> None:
    usage = seen(NOTHING, Look(snapshots=str(tmp_path)), "actor_train-0")
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
    monkeypatch.setattr(memory, "_torch_with_gpu", lambda: SimpleNamespace(cuda=cuda))
    usage = seen(NOTHING, Look(), "actor_train-0")
    assert (usage.device_bytes, usage.device_name, told) == (123, "NVIDIA H100 80GB HBM3", ["reset"])
    told.clear()
    seen(NOTHING, Look(snapshots=str(tmp_path)), "actor_train-0")
    assert told == [("dump", str(tmp_path / "actor_train-0.pickle")), "record", "reset"]
