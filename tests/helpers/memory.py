"""How much a process's memory grows."""

import gc
import re
from collections.abc import Callable
from pathlib import Path

import psutil


def growth(action: Callable[[], None]) -> int:
    """Bytes between this process's memory now and its peak during `action`, whatever it was before."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = psutil.Process().memory_info().rss
    action()
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return int(peak.group(1)) * 1024 - before
