"""How much memory a worker's process has taken."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.utils.meter import Look, Usage

_KB = 1024
_MOST_ALLOCATIONS = 100_000  # in the history of a snapshot


def seen(usage: Usage, look: Look, name: str) -> Usage:
    """The usage, with the memory of this process and of those that it started. Where `look` asks for snapshots, the
    allocator's history is recorded from now on, and what it holds is written to `<name>.pickle`, in place of the one
    before. A process without a context on a GPU makes none: neither the driver, nor one whose engine has processes of
    its own."""
    usage, torch = replace(usage, host_bytes=host_peak()), _torch_with_gpu()
    if torch is None:
        return usage
    if look.snapshots:
        torch.cuda.memory._dump_snapshot(str(Path(look.snapshots, f"{name}.pickle")))
        torch.cuda.memory._record_memory_history(max_entries=_MOST_ALLOCATIONS)
    peak = int(torch.cuda.max_memory_allocated())
    torch.cuda.reset_peak_memory_stats()
    return replace(usage, device_bytes=peak, device_name=str(torch.cuda.get_device_name()))


def host_peak(process: str = "self") -> int:
    """The largest resident set so far of a process, and of those that it started and that still run, in bytes: an
    upper bound where their peaks lie apart. 0 where the kernel does not tell."""
    return sum(_resident_peak(Path("/proc", pid)) for pid in _family(process))


def _family(process: str) -> list[str]:
    found = [process]
    for parent in found:  # grows on the way
        for listed in Path("/proc", parent, "task").glob("*/children"):
            try:
                found += listed.read_text().split()
            except OSError:  # it has ended meanwhile
                continue
    return found


def _resident_peak(place: Path) -> int:
    try:
        lines = (place / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * _KB for line in lines if line.startswith("VmHWM:")), 0)


def _torch_with_gpu() -> Any:
    torch: Any = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None
