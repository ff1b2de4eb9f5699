"""A machine without accelerators: devices are slots."""

import ctypes
import sys

import torch

from roll.platforms.base import Platform

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


class CpuPlatform(Platform):
    device_type = "cpu"
    communication_backend = "gloo"

    def set_device(self, device: torch.device) -> None:
        """Tells the C library to keep freed memory: handing every activation back to the kernel and faulting it in
        again costs a tenth of a small model's step."""
        if sys.platform == "linux":
            mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's; absent from other C libraries
            if mallopt is not None:
                mallopt(_M_MMAP_THRESHOLD, 32 << 20)
                mallopt(_M_TRIM_THRESHOLD, 1 << 30)

    def empty_cache(self) -> None:
        pass
