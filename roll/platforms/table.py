"""Which platforms there are."""

import torch

from roll.platforms.base import Platform
from roll.platforms.cpu import CpuPlatform
from roll.platforms.cuda import CudaPlatform

_PLATFORMS: tuple[Platform, ...] = (CudaPlatform(), CpuPlatform())


def platform_of(device: torch.device) -> Platform:
    """The platform of a device. ValueError for a kind of device we do not know."""
    for platform in _PLATFORMS:
        if platform.device_type == device.type:
            return platform
    known = ", ".join(platform.device_type for platform in _PLATFORMS)
    raise ValueError(f"no platform for device {device}; known kinds of device: {known}")
