"""How much a rank's memory grows while it saves and loads. Module-level, because it travels to the ranks by name."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.parity.megatron.ranks import Run, one_update, tensors_of_optimizer, trainer


@dataclass(frozen=True)
class Peaks:
    """Bytes that a rank's memory grew by, at most, while it saved and while it loaded; and what its share of the
    optimizer's state takes."""

    save: int
    load: int
    share: int


def memory_of_a_checkpoint(run: Run, directory: Path) -> Peaks:
    with trainer(run) as strategy:
        one_update(strategy, run)
        share = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of_optimizer(strategy))
        saved = growth(lambda: strategy.save_checkpoint(directory))
        loaded = growth(lambda: strategy.load_checkpoint(directory))
        return Peaks(saved, loaded, share)


def growth(action: Callable[[], None]) -> int:
    """Bytes between this process's memory now and its peak during `action`."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = psutil.Process().memory_info().rss
    action()
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return int(peak.group(1)) * 1024 - before
