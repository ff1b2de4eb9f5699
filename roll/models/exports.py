"""Weights as engines and files get them: by the names of a Hugging Face model, adapters merged into them or apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

ADAPTER = "default"  # peft's name for the only one
FACTORS = ("lora_A", "lora_B")
_PARTS = (".base_layer.", f".modules_to_save.{ADAPTER}.")
Tensors = Callable[[str], torch.Tensor]
LowRank = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Exported:
    """A weight as a Hugging Face checkpoint has it, and the parameters of the trained module that make it. `adapter`:
    names of A and B, and s; `is_transposed`: the weight's rows are inputs. `scale`: of what is sent."""

    name: str
    weight: str
    adapter: tuple[str, str, float] | None = None
    is_transposed: bool = False
    scale: float = 1.0

    @property
    def parameters(self) -> tuple[str, ...]:
        return (self.weight,) if self.adapter is None else (self.weight, *self.adapter[:2])

    def bare(self) -> Exported:
        """The weight without its adapter."""
        return replace(self, adapter=None)

    def apart(self) -> Iterator[Exported]:
        """The adapter by itself, under the names of peft's files without their prefix: A, and s B, so that nobody who
        gets it need know alpha."""
        if self.adapter is not None:
            a, b, scale = self.adapter
            layer = self.name.removesuffix(".weight")
            yield Exported(f"{layer}.{FACTORS[0]}.weight", a)
            yield Exported(f"{layer}.{FACTORS[1]}.weight", b, scale=scale)

    def value(self, whole: Tensors, dtype: torch.dtype) -> torch.Tensor:
        """The weight with its adapter in it, added in fp32; `whole` gives the full tensor of a parameter. Without one
        that tensor itself, where the dtype is its own."""
        weight = whole(self.weight).detach()
        if self.adapter is None:
            return weight.to(dtype) if self.scale == 1 else (weight.float() * self.scale).to(dtype)
        a, b, scale = self.adapter
        down, up = whole(a).detach().float(), whole(b).detach().float()
        parts = down.shape[-2] // up.shape[-1]  # gate and up of experts have factors of their own in one matrix
        low_rank = torch.cat([y @ x for x, y in zip(down.chunk(parts, -2), up.chunk(parts, -2), strict=True)], -2)
        if self.is_transposed:
            low_rank = low_rank.mT
        return torch.add(weight.float(), low_rank.to(weight.device), alpha=scale).to(dtype)


class ModelAdapters(Protocol):
    """Adapters of a model, as strategies use them. `head`: saved weights of its `score`."""

    head: Mapping[str, torch.Tensor]

    def off(self) -> AbstractContextManager[None]: ...
    def without_dropout(self) -> AbstractContextManager[None]: ...
    def low_rank_part(self, layer: Any, states: torch.Tensor) -> tuple[Any, LowRank | None]: ...
    def exports(self, pretrained_names: Mapping[str, str]) -> tuple[Exported, ...]: ...
    def save(self, directory: Path, base: str, trained: Mapping[str, torch.Tensor]) -> None: ...


def plain_name(name: str) -> str:
    """A weight's name in the model without adapters. Example: "q_proj.base_layer.weight" -> "q_proj.weight"."""
    for part in _PARTS:
        name = name.replace(part, ".")
    return name


def sent_name(name: str) -> str:
    """The name under which a parameter of a model with adapters is sent where those are sent by themselves
    (`Exported.apart`). Example: "q_proj.lora_A.default.weight" -> "q_proj.lora_A.weight"."""
    return plain_name(name).replace(f".{ADAPTER}.", ".") if ".lora_" in name else plain_name(name)
