"""NVIDIA GPUs."""

import torch

from roll.platforms.base import MemoryStats, Platform


class CudaPlatform(Platform):
    device_type = "cuda"
    visible_devices_variable = "CUDA_VISIBLE_DEVICES"
    communication_backend = "nccl"

    def is_available(self) -> bool:
        return torch.cuda.is_available()

    def device_count(self) -> int:
        return torch.cuda.device_count()

    def device(self, index: int = 0) -> torch.device:
        return torch.device("cuda", index)

    def set_device(self, device: torch.device) -> None:
        torch.cuda.set_device(device)

    def memory(self, device: torch.device) -> MemoryStats:
        return MemoryStats(
            allocated_bytes=torch.cuda.memory_allocated(device),
            reserved_bytes=torch.cuda.memory_reserved(device),
            peak_allocated_bytes=torch.cuda.max_memory_allocated(device),
            total_bytes=torch.cuda.get_device_properties(device).total_memory,
        )

    def reset_peak_memory(self, device: torch.device) -> None:
        torch.cuda.reset_peak_memory_stats(device)

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)
