"""LoRA on one of Megatron's linear layers, which may stand for several of Hugging Face's (q, k and v; gate and up).

Each of those has adapters of its own. Under tensor parallelism the factor on the side that the layer divides is divided
with it, the other one is whole on every rank; what travels between ranks is r numbers per position.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch import nn
from torch.nn import functional

from roll.models.megatron.family import Columns, FusedGateUp, Rows, Rule, Whole

CHILD = "adapters"  # of the linear layer that they stand beside
FACTORS = ("lora_A", "lora_B")


@dataclass(frozen=True)
class Form:
    """`scale` is s in W + s B A. `seed`: of A, which is the same under any parallel sizes."""

    rank: int
    scale: float
    dropout: float
    seed: int


class Pair(nn.Module):
    """A and B of one layer of Hugging Face's: what this rank holds of them."""

    lora_A: nn.Parameter
    lora_B: nn.Parameter

    def __init__(self, a: torch.Tensor, b: torch.Tensor):
        super().__init__()
        self.lora_A, self.lora_B = nn.Parameter(a), nn.Parameter(b)


class LayerAdapters(nn.Module):
    """`layers`: full Hugging Face names of those that the matrix stands for -> where their rows lie in this rank's part
    of it; of them, `chosen` ones are adapted."""

    def __init__(self, linear: Any, layers: Mapping[str, torch.Tensor], chosen: set[str], by_input: bool, form: Form):
        super().__init__()
        weight: nn.Parameter = linear.weight
        self.by_input, self.form, self.is_on = by_input, form, True
        self.group: Any = linear.tp_group
        size, rank, is_expert = self.group.size(), self.group.rank(), bool(linear.is_expert)
        self.is_partial = is_expert and size > 1  # the dispatcher of tokens sums over the ranks
        self.by_position = bool(linear.config.sequence_parallel) and size > 1 and not is_expert
        self.pairs = nn.ModuleDict()
        inputs = weight.shape[1] * (size if by_input else 1)
        for name, rows in layers.items():
            if name not in chosen:
                continue
            a = _first(name, form, inputs)
            if by_input:
                a = a.chunk(size, dim=1)[rank]
            pair = Pair(a.to(weight, copy=True), torch.zeros(len(rows), form.rank).to(weight))
            self.pairs[name.rpartition(".")[2]] = pair
            for factor in FACTORS:
                self._mark(getattr(pair, factor), (factor == "lora_A") == by_input, weight)
        order = torch.cat([rows for name, rows in layers.items() if name in chosen]).to(weight.device)
        in_order = torch.equal(order, torch.arange(len(weight), device=weight.device))
        self.rows: torch.Tensor | None
        self.register_buffer("rows", None if in_order else order, persistent=False)
        linear.register_forward_hook(self._added, prepend=True)  # before what others make of the output

    def _mark(self, parameter: Any, is_divided: bool, weight: Any) -> None:
        """Marks a parameter for Megatron: whether the gradient norm counts it once, and over which ranks its gradient
        is summed."""
        set_tensor_model_parallel_attributes(parameter, True, 0, 1)
        parameter.allreduce = weight.allreduce
        if not is_divided:
            parameter.shared = self.group.rank() > 0
            parameter.sequence_parallel = self.by_position

    @property
    def sums(self) -> Iterator[nn.Parameter]:
        """Parameters of which every rank of `group` has a part of the gradient, and Megatron sums none."""
        if self.is_partial:
            yield from (getattr(pair, "lora_B" if self.by_input else "lora_A") for pair in self.pairs.values())

    def merged(self, weight: torch.Tensor) -> torch.Tensor:
        """This rank's part of W + s B A, added in fp32 and rounded once."""
        factors = [(pair.lora_A, pair.lora_B) for pair in self._pairs]
        low_rank = torch.cat([b.detach().float() @ a.detach().float() for a, b in factors]) * self.form.scale
        whole = weight.detach().float()
        return (whole + low_rank if self.rows is None else whole.index_add(0, self.rows, low_rank)).to(weight.dtype)

    @property
    def _pairs(self) -> list[Pair]:
        return list(self.pairs.values())  # type: ignore[arg-type]

    def _added(self, linear: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: Any) -> Any:
        if not self.is_on:
            return None
        output, bias = outputs
        low = torch.cat([functional.linear(self._dropped(inputs[0]), pair.lora_A) for pair in self._pairs], dim=-1)
        by_layer = self._exchanged(low).split(self.form.rank, dim=-1)
        products = [functional.linear(part, pair.lora_B) for part, pair in zip(by_layer, self._pairs, strict=True)]
        product = torch.cat(products, dim=-1) * self.form.scale
        return (output + product if self.rows is None else output.index_add(-1, self.rows, product)), bias

    def _dropped(self, given: torch.Tensor) -> torch.Tensor:
        if not (self.training and self.form.dropout):
            return given
        with self._random():
            return functional.dropout(given, self.form.dropout)

    def _random(self) -> AbstractContextManager[None]:
        """Draws that tensor-parallel ranks with the same input have in common, and those with parts of it have not."""
        differs = self.by_input or self.by_position
        tracker: Any = get_cuda_rng_tracker()
        return tracker.fork() if differs else nullcontext()

    def _exchanged(self, low: torch.Tensor) -> torch.Tensor:
        """A times the input, as B needs it: of all positions of the rank's rows, or of its positions of all rows."""
        if self.is_partial or self.group.size() == 1:
            return low
        if self.by_position:
            if self.by_input:
                return reduce_scatter_to_sequence_parallel_region(low, group=self.group)
            return gather_from_sequence_parallel_region(low, group=self.group)
        if self.by_input:
            return reduce_from_tensor_model_parallel_region(low, group=self.group)
        return copy_to_tensor_model_parallel_region(low, group=self.group)


def factor_rule(layer: str, factor: str, of_matrix: Rule) -> Rule:
    """Rule of one factor of a layer, under its name in peft's files."""
    name, by_input = f"{layer}.{factor}.weight", isinstance(of_matrix, Columns)
    if factor == "lora_B" and isinstance(of_matrix, FusedGateUp):
        return FusedGateUp(name)
    if factor == "lora_A":
        return Columns(name) if by_input else Whole(name)
    return Whole(name) if by_input else Rows(name)


def _first(name: str, form: Form, inputs: int) -> torch.Tensor:
    """A new A, whole: peft's distribution, drawn by the layer's name. A new B is 0."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{form.seed} {name}".encode()))
    bound = 1 / math.sqrt(inputs)
    return torch.empty(form.rank, inputs).uniform_(-bound, bound, generator=generator)
