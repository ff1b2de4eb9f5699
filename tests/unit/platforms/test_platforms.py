import pytest
import torch

from roll.platforms.table import CpuPlatform, CudaPlatform, platform_of


def test_a_device_names_its_platform() -> None:
    assert isinstance(platform_of(torch.device("cpu")), CpuPlatform)
    assert isinstance(platform_of(torch.device("cuda", 1)), CudaPlatform)
    with pytest.raises(ValueError, match="known kinds of device: cuda, cpu"):
        platform_of(torch.device("meta"))


def test_names_that_other_parts_rely_on() -> None:
    assert (CpuPlatform.device_type, CpuPlatform.communication_backend) == ("cpu", "gloo")
    assert (CudaPlatform.device_type, CudaPlatform.communication_backend) == ("cuda", "nccl")
