"""A machine without accelerators: devices are slots, memory is the process's own."""

import ctypes
import os
import resource
import sys

import torch

from roll.platforms.base import MemoryStats, Platform

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


class CpuPlatform(Platform):
    device_type = "cpu"
    visible_devices_variable = None
    communication_backend = "gloo"

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 0

    def device(self, index: int = 0) -> torch.device:
        return torch.device("cpu")

    def set_device(self, device: torch.device) -> None:
        """Also tells the C library to keep freed memory: handing every activation back to the kernel and faulting it in
        again costs a tenth of a small model's step."""
        if sys.platform == "linux":
            mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; absent from other C libraries
            if mallopt is not None:
                mallopt(_M_MMAP_THRESHOLD, 32 << 20)
                mallopt(_M_TRIM_THRESHOLD, 1 << 30)

    def memory(self, device: torch.device) -> MemoryStats:
        """Resident memory of this process; the peak is since its start."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        resident = _resident_bytes() or peak
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return MemoryStats(resident, resident, max(peak, resident), total)

    def reset_peak_memory(self, device: torch.device) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def synchronize(self, device: torch.device) -> None:
        pass


def _resident_bytes() -> int | None:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
