"""What differs between kinds of device, in one place: names, variables, communication, memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch


@dataclass(frozen=True)
class MemoryStats:
    """Bytes of one device as this process sees them. `reserved` counts what the allocator keeps for later, too."""

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    total_bytes: int


class Platform(ABC):
    """A kind of device. Stateless: every method asks the driver."""

    device_type: ClassVar[str]  # as in torch.device(device_type); also DeepSpeed's accelerator name
    visible_devices_variable: ClassVar[str | None]  # environment variable that limits a process to some devices
    communication_backend: ClassVar[str]  # of torch.distributed

    @abstractmethod
    def is_available(self) -> bool:
        """True if this process can use such a device."""

    @abstractmethod
    def device_count(self) -> int:
        """Devices this process can see; 0 where devices are only slots."""

    @abstractmethod
    def device(self, index: int = 0) -> torch.device:
        """The `index`-th visible device."""

    @abstractmethod
    def set_device(self, device: torch.device) -> None:
        """Makes it the current device of this process."""

    @abstractmethod
    def memory(self, device: torch.device) -> MemoryStats:
        """Memory now; the peak since the process or `reset_peak_memory` began."""

    @abstractmethod
    def reset_peak_memory(self, device: torch.device) -> None: ...

    @abstractmethod
    def empty_cache(self) -> None:
        """Hands memory that the allocator keeps but does not use back to the device."""

    @abstractmethod
    def synchronize(self, device: torch.device) -> None:
        """Waits until what was queued on the device is done."""
