"""AdamW whose moments have 8 bits: bitsandbytes' own, by blocks of 256 numbers with one scale.

Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from roll.utils.imports import resolve

_TABLES = ("qmap1", "qmap2")  # what the codes stand for: one for all weights


def adamw_8bit(groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    """An 8-bit AdamW over plain tensors, or over the shards of FSDP2, which bitsandbytes does not know."""
    make: Any = resolve("bitsandbytes.optim:AdamW8bit")
    has_shards = any(isinstance(weight, DTensor) for group in groups for weight in group["params"])
    return OfShards(make, groups, **settings) if has_shards else make(groups, **settings)


class OfShards(torch.optim.Optimizer):
    """An optimizer over this rank's parts of weights that are divided among ranks (DTensor)."""

    def __init__(self, make: Any, groups: list[dict[str, Any]], **settings: Any):
        super().__init__(groups, settings)
        weights = [weight for group in self.param_groups for weight in group["params"]]
        self._parts = {weight: nn.Parameter(weight.detach().to_local()) for weight in weights}
        own = [
            {**group, "params": [self._parts[weight] for weight in group["params"] if self._parts[weight].numel()]}
            for group in self.param_groups
        ]
        self._own = make(own, **settings)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group, own in zip(self.param_groups, self._own.param_groups, strict=True):
            own["lr"] = group["lr"]
        for weight, part in self._parts.items():
            part.data = weight.detach().to_local()  # FSDP2 may have moved it at its first pass
            part.grad = None if weight.grad is None else weight.grad.to_local()
            assert part.is_contiguous()  # otherwise the package updates a copy
        self._own.step()
        for weight, part in self._parts.items():
            part.grad = None
            if self._own.state.get(part):
                self.state[weight] = self._own.state[part]

    def saved(self, weight: nn.Parameter) -> dict[str, Any]:
        """What has to be kept of a weight's state; nothing before its first update."""
        return {key: value for key, value in self.state.get(weight, {}).items() if key not in _TABLES}

    def restore(self, saved: Mapping[nn.Parameter, Mapping[str, Any]]) -> None:
        """Takes the place of all states."""
        self.state.clear()
        self._own.state.clear()
        weights = {id(part): weight for weight, part in self._parts.items()}
        for group, place, index, part in self._places():
            weight = weights[id(part)]
            if not saved.get(weight):
                continue
            self._own.init_state(group, part, place, index)  # with the tables
            self.state[weight] = self._own.state[part]
            for key, value in saved[weight].items():
                self.state[weight][key] = value.to(part.device) if torch.is_tensor(value) else value

    def _places(self) -> Iterator[tuple[dict[str, Any], int, int, nn.Parameter]]:
        for place, group in enumerate(self._own.param_groups):
            for index, part in enumerate(group["params"]):
                yield group, place, index, part
