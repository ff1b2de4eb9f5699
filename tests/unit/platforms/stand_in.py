"""A device module that has no device and writes down its calls, and a platform of CPU tensors that has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from roll.platforms.table import NPU, Platform


@dataclass
class FakeModule:
    """What torch.cuda and torch.npu have in common, as far as roll asks for it. `calls`: in their order."""

    calls: list[str] = field(default_factory=list)
    states: list[torch.Tensor] = field(default_factory=lambda: [torch.tensor([7], dtype=torch.uint8)])

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def set_device(self, device: torch.device) -> None:
        self.calls.append(f"set_device {device}")

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")

    def synchronize(self, device: torch.device | None = None) -> None:
        self.calls.append("synchronize" if device is None else f"synchronize {device}")

    def current_stream(self, device: torch.device) -> Any:
        return SimpleNamespace(synchronize=lambda: self.calls.append(f"wait {device}"))

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return self.states

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        self.states = states

    def max_memory_allocated(self) -> int:
        return 123

    def reset_peak_memory_stats(self) -> None:
        self.calls.append("reset_peak_memory_stats")

    def get_device_name(self) -> str:
        return "Ascend910B"


class StandInPlatform(Platform):
    """An Ascend platform whose tensors are the CPU's, so that all code around it runs."""

    fake: FakeModule

    @property
    def is_accelerator(self) -> bool:
        return True

    @property
    def module(self) -> Any:
        return self.fake


def stand_in() -> StandInPlatform:
    values: dict[str, Any] = {name: getattr(NPU, name) for name in NPU.__dataclass_fields__}
    values["device_type"] = "cpu"
    platform = StandInPlatform(**values)
    object.__setattr__(platform, "fake", FakeModule())
    return platform
