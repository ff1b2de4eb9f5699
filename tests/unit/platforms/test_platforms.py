import pytest
import torch

from roll.platforms.cpu import CpuPlatform
from roll.platforms.cuda import CudaPlatform
from roll.platforms.table import current_platform, platform_of


def test_a_device_names_its_platform() -> None:
    assert isinstance(platform_of(torch.device("cpu")), CpuPlatform)
    assert isinstance(platform_of(torch.device("cuda", 1)), CudaPlatform)
    with pytest.raises(ValueError, match="known kinds of device: cuda, cpu"):
        platform_of(torch.device("meta"))


def test_names_that_other_parts_rely_on() -> None:
    assert (CpuPlatform.device_type, CpuPlatform.communication_backend) == ("cpu", "gloo")
    assert (CudaPlatform.device_type, CudaPlatform.communication_backend) == ("cuda", "nccl")
    assert CudaPlatform.visible_devices_variable == "CUDA_VISIBLE_DEVICES"
    assert CpuPlatform.visible_devices_variable is None
    assert CudaPlatform().device(2) == torch.device("cuda:2")


def test_the_current_platform_is_the_accelerator_if_there_is_one() -> None:
    assert current_platform().device_type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_cpu_memory_is_that_of_the_process_and_survives_set_device() -> None:
    platform, device = CpuPlatform(), torch.device("cpu")
    platform.set_device(device)
    before = platform.memory(device)
    kept = torch.ones(64 << 20, dtype=torch.uint8)  # above 32 MiB malloc never serves it from memory freed before
    after = platform.memory(device)
    assert after.allocated_bytes - before.allocated_bytes > 48 << 20
    assert after.allocated_bytes <= after.peak_allocated_bytes <= after.total_bytes
    assert kept[0] == 1
    assert platform.device_count() == 0
