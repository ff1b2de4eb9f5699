"""LoRA on the experts of a Hugging Face mixture, whose matrices transformers keeps in one tensor for all experts of a
layer: adapters of every expert, under the names that the model's files give its single matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from roll.errors import StrategyError
from roll.models.experts.ranks import OWN_FORWARD, experts_of

A, B = "_lora_A", "_lora_B"  # end the names of the factors, which lie beside the weight that they are added to
_WEIGHT = ".weight"
_ALIGNED = 8  # numbers of a row that grouped products on GPUs want a multiple of: 16 bytes in bf16


@dataclass(frozen=True)
class ExpertMatrix:
    """A weight of all experts of a layer, by its full name in the model. `layers`: what the model's files call the
    linear layers in it, of one expert after the other; `parts` of each, one below the other (gate and up)."""

    name: str
    layers: tuple[str, ...]
    parts: int

    @property
    def factors(self) -> tuple[str, str]:
        return f"{self.name}{A}", f"{self.name}{B}"

    def apart(self, factors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The factors of every layer by peft's names, from those of the matrix."""
        a, b = (factors[name] for name in self.factors)
        pairs = zip(*(factor.unflatten(1, (self.parts, -1)).flatten(0, 1) for factor in (a, b)), strict=True)
        named = zip(self.layers, pairs, strict=True)
        return {f"{layer}.lora_{x}{_WEIGHT}": one for layer, pair in named for x, one in zip("AB", pair, strict=True)}

    def together(self, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The factors of the matrix, from those of every layer."""
        stacks = (torch.stack([named[f"{layer}.lora_{x}{_WEIGHT}"] for layer in self.layers]) for x in "AB")
        whole = (stack.unflatten(0, (-1, self.parts)).flatten(1, 2) for stack in stacks)
        return dict(zip(self.factors, whole, strict=True))

    @property
    def peft_names(self) -> list[str]:
        return [f"{layer}.lora_{x}{_WEIGHT}" for layer in self.layers for x in "AB"]


def expert_matrices(pretrained: PreTrainedModel) -> dict[str, ExpertMatrix]:
    """The weights of a mixture's experts that can have adapters: without biases, one row per output, and single
    matrices in the model's files."""
    weights = [
        (f"{name}.{own}", weight, 2 if own == "gate_up_proj" else 1)
        for name, experts in experts_of(pretrained)
        if not (experts.has_bias or experts.is_transposed)
        for own, weight in experts.named_parameters(recurse=False)
        if not own.endswith((A, B))
    ]
    # What becomes of numbers in the places of the matrices says which of them a name in the files is.
    numbers = {
        name: torch.arange(whole_shape(w)[0] * parts, device="cpu").view(-1, parts, 1) for name, w, parts in weights
    }
    places: dict[str, dict[int, str]] = {name: {} for name in numbers}
    for name, numbered in numbers.items():
        for layer, found in revert_weight_conversion(pretrained, {name: numbered}).items():
            if found.numel() == 1 and layer.endswith(_WEIGHT):
                places[name][int(found)] = layer.removesuffix(_WEIGHT)
    return {
        name: ExpertMatrix(name, tuple(places[name][i] for i in range(len(places[name]))), parts)
        for name, _, parts in weights
        if len(places[name]) == numbers[name].numel()
    }


def matrices_of(chosen: Sequence[str], matrices: Mapping[str, ExpertMatrix]) -> list[ExpertMatrix]:
    """The matrices whose layers are all `chosen`. StrategyError where only some of one are."""
    wanted, found = set(chosen), []
    for matrix in matrices.values():
        missing = [layer for layer in matrix.layers if layer not in wanted]
        if not missing:
            found.append(matrix)
        elif len(missing) < len(matrix.layers):
            raise StrategyError(
                f"model_args.lora_target: it names a part of the experts' {matrix.name} and leaves out {missing[0]}. "
                "Adapters are for all experts of a layer, and for gate and up together. Name all of them, or none"
            )
    return found


class ExpertAdapters:
    """The adapters of the experts of one layer, which add s B A to the matrices that have them.

    Rows go through the low rank beside the experts' own products, sorted by expert, so that nothing is rounded away in
    bf16. Where ranks divide the experts, they divide the factors, which have the same first dimension.
    """

    def __init__(self, experts: nn.Module, names: Sequence[str], rank: int, scale: float, dropout: float):
        self.names, self.rank, self.scale, self.is_on = frozenset(names), rank, scale, True
        for name in names:
            count, rows, columns = whole_shape(experts.get_parameter(name))
            parts = 2 if name == "gate_up_proj" else 1
            a, b = torch.empty(count, parts * rank, columns), torch.zeros(count, rows, rank)
            experts.register_parameter(f"{name}{A}", nn.Parameter(a.uniform_(-1, 1).div_(math.sqrt(columns))))
            experts.register_parameter(f"{name}{B}", nn.Parameter(b))
        experts.add_module("lora_dropout", nn.ModuleDict({"default": nn.Dropout(dropout)}))  # as peft calls its own
        self._plain: Callable[..., torch.Tensor] = type(experts).forward
        setattr(experts, OWN_FORWARD, self.forward)
        experts.forward = partial(self.forward, experts)

    def forward(self, experts: Any, hidden: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """`hidden` [n, H] through the experts `chosen` [n, k], each times its share [n, k], and summed: [n, H]."""
        if not self.is_on:
            return self._plain(experts, hidden, chosen, shares)
        by_expert, order = chosen.flatten().sort(stable=True)
        numbers = torch.arange(int(experts.num_experts), device=chosen.device)
        ends = torch.searchsorted(by_expert, numbers, right=True).to(torch.int32)
        rows = hidden[order // chosen.shape[1]]
        if experts.has_gate:
            inner = experts._apply_gate(self._product(experts, "gate_up_proj", rows, ends))
        else:
            inner = experts.act_fn(self._product(experts, "up_proj", rows, ends))
        outer = self._product(experts, "down_proj", inner, ends) * shares.flatten()[order, None]
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        return outer[places].unflatten(0, chosen.shape).sum(1).to(hidden.dtype)

    def _product(self, experts: Any, name: str, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        product = functional.grouped_mm(rows, getattr(experts, name).transpose(1, 2), offs=ends)
        if name not in self.names:
            return product
        a, b = getattr(experts, f"{name}{A}"), getattr(experts, f"{name}{B}")
        parts, missing = a.shape[1] // self.rank, -self.rank % _ALIGNED
        a = functional.pad(a.unflatten(1, (parts, -1)), (0, 0, 0, missing)).flatten(1, 2)
        b = functional.pad(b, (0, missing))
        low = functional.grouped_mm(experts.lora_dropout["default"](rows), a.transpose(1, 2), offs=ends)
        pairs = zip(low.chunk(parts, -1), b.chunk(parts, 1), strict=True)
        added = [functional.grouped_mm(part, of_part.transpose(1, 2), offs=ends) for part, of_part in pairs]
        return product + torch.cat(added, -1) * self.scale


def put_on(
    pretrained: PreTrainedModel, matrices: Sequence[ExpertMatrix], rank: int, scale: float, dropout: float
) -> list[ExpertAdapters]:
    """Adapters on these matrices: A drawn as peft draws its own, B zeros."""
    names = {matrix.name for matrix in matrices}

    def made() -> Iterator[ExpertAdapters]:
        for place, experts in experts_of(pretrained):
            own = [name for name, _ in experts.named_parameters(recurse=False) if f"{place}.{name}" in names]
            if own:
                yield ExpertAdapters(experts, own, rank, scale, dropout)

    return list(made())


def whole_shape(weight: nn.Parameter) -> tuple[int, ...]:
    """Shape of the whole weight, which ZeRO-3 has divided."""
    return tuple(getattr(weight, "ds_shape", weight.shape))
