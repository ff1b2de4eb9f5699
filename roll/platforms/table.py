"""Which platforms there are."""

from __future__ import annotations

import ctypes
import sys
from abc import ABC, abstractmethod
from typing import ClassVar

import torch

# What differs between kinds of device, in one place.


class Platform(ABC):
    """A kind of device. Stateless."""

    device_type: ClassVar[str]  # as in torch.device(device_type); also DeepSpeed's accelerator name
    communication_backend: ClassVar[str]  # of torch.distributed

    @abstractmethod
    def set_device(self, device: torch.device) -> None:
        """Makes it the current device of this process."""

    @abstractmethod
    def empty_cache(self) -> None:
        """Hands memory that the allocator keeps but does not use back to the device."""


# A machine without accelerators: devices are slots.

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


# NVIDIA GPUs.


class CudaPlatform(Platform):
    device_type = "cuda"
    communication_backend = "nccl"

    def set_device(self, device: torch.device) -> None:
        torch.cuda.set_device(device)

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()


_PLATFORMS: tuple[Platform, ...] = (CudaPlatform(), CpuPlatform())


def platform_of(device: torch.device) -> Platform:
    """The platform of a device. ValueError for a kind of device we do not know."""
    for platform in _PLATFORMS:
        if platform.device_type == device.type:
            return platform
    known = ", ".join(platform.device_type for platform in _PLATFORMS)
    raise ValueError(f"no platform for device {device}; known kinds of device: {known}")
