"""NVIDIA GPUs."""

import torch

from roll.platforms.base import Platform


class CudaPlatform(Platform):
    device_type = "cuda"
    communication_backend = "nccl"

    def set_device(self, device: torch.device) -> None:
        torch.cuda.set_device(device)

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()
