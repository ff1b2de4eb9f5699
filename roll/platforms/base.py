"""What differs between kinds of device, in one place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch


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
