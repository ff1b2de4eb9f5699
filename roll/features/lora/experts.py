"""LoRA on the experts of a Hugging Face mixture, whose matrices transformers keeps in one tensor for all experts of a
layer: adapters of every expert, under the names that the model's files give its single matrices, or, where the files
hold all experts in one tensor too, under those that peft gives a parameter of a module."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from roll.errors import StrategyError
from roll.models.experts.ranks import OWN_FORWARD, experts_of, whole_shape

A, B = "_lora_A", "_lora_B"  # end the names of the factors, which lie beside the weight that they are added to
_WEIGHT = ".weight"
_ALIGNED = 8  # numbers of a row that grouped products on GPUs want a multiple of: 16 bytes in bf16


@dataclass(frozen=True)
class ExpertMatrix:
    """A weight of all experts of a layer, by its full name in the model.

    - `layers`: what the model's files call the linear layers in it, of one expert after the other; where the files hold
      all experts in one tensor, the names of such tensors
    - `parts`: of each expert, one below the other, with factors of their own (gate and up)
    - `is_stacked`: the files hold all experts in one tensor, of which peft adapts what is in memory: all in one part
    - `is_transposed`: rows are inputs
    - `inside`: the number of other adapted weights of the module that peft wraps around this one
    """

    name: str
    layers: tuple[str, ...]
    parts: int
    is_stacked: bool = False
    is_transposed: bool = False
    inside: int = 0

    @property
    def factors(self) -> tuple[str, str]:
        return f"{self.name}{A}", f"{self.name}{B}"

    def apart(self, factors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The factors of every layer by peft's names, from those of the matrix."""
        a, b = (factors[name] for name in self.factors)
        if self.is_stacked:  # [experts x r, inputs] and [outputs, r x experts]
            return dict(zip(self.peft_names, (a.flatten(0, 1), b.permute(1, 2, 0).flatten(1)), strict=True))
        pairs = zip(*(factor.unflatten(1, (self.parts, -1)).flatten(0, 1) for factor in (a, b)), strict=True)
        values = [one for pair in pairs for one in pair]
        return dict(zip(self.peft_names, values, strict=True))

    def together(self, named: Mapping[str, torch.Tensor], shapes: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """The factors of the matrix, which have these shapes, from those of every layer."""
        values = [named[name] for name in self.peft_names]
        if self.is_stacked:
            (a, b), (experts, rank, _) = values, shapes[0]
            whole = (a.unflatten(0, (experts, rank)), b.unflatten(1, (rank, experts)).permute(2, 0, 1))
        else:
            stacks = (torch.stack(values[start::2]) for start in range(2))
            whole = tuple(stack.unflatten(0, (-1, self.parts)).flatten(1, 2) for stack in stacks)
        return dict(zip(self.factors, whole, strict=True))

    @property
    def peft_names(self) -> list[str]:
        """A and B of each layer in turn."""
        layers = self.layers
        if self.is_stacked:
            layers = (f"{self.name.rpartition('.')[0]}{'.base_layer' * self.inside}",)
        return [f"{layer}.lora_{x}{_WEIGHT}" for layer in layers for x in "AB"]


def expert_matrices(pretrained: PreTrainedModel) -> dict[str, ExpertMatrix]:
    """The weights of a mixture's experts that can have adapters, in the order of the model."""
    weights = {
        f"{name}.{own}": (experts, weight, 2 if own == "gate_up_proj" else 1)
        for name, experts in experts_of(pretrained)
        for own, weight in experts.named_parameters(recurse=False)
        if len(whole_shape(weight)) == 3 and not own.endswith((A, B))
    }
    return {name: _matrix(pretrained, name, *found) for name, found in weights.items()}


def _matrix(pretrained: PreTrainedModel, name: str, experts: Any, weight: nn.Parameter, parts: int) -> ExpertMatrix:
    # What becomes of numbers in the places of the matrices says which of them a name in the files is.
    numbered = torch.arange(whole_shape(weight)[0] * parts, device="cpu").view(-1, parts, 1)
    stored = {
        layer.removesuffix(_WEIGHT): found
        for layer, found in revert_weight_conversion(pretrained, {name: numbered}).items()
    }
    places = {int(found): layer for layer, found in stored.items() if found.numel() == 1}
    if len(places) == numbered.numel():
        return ExpertMatrix(name, tuple(places[i] for i in range(len(places))), parts)
    return ExpertMatrix(name, tuple(stored), 1, is_stacked=True, is_transposed=experts.is_transposed)


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
    modules = [matrix.name.rpartition(".")[0] for matrix in found]
    return [replace(matrix, inside=modules[i + 1 :].count(modules[i])) for i, matrix in enumerate(found)]


class ExpertAdapters:
    """The adapters of the experts of one layer, which add s B A to the matrices that have them.

    Rows go through the low rank beside the experts' own products, sorted by expert, so that nothing is rounded away in
    bf16. Where ranks divide the experts, they divide the factors, which have the same first dimension.
    """

    def __init__(
        self, experts: nn.Module, matrices: Mapping[str, ExpertMatrix], rank: int, scale: float, dropout: float
    ):
        self.names, self.rank, self.scale, self.is_on = frozenset(matrices), rank, scale, True
        for name, matrix in matrices.items():
            count, *shape = whole_shape(experts.get_parameter(name))
            rows, columns = reversed(shape) if matrix.is_transposed else shape
            a, b = torch.empty(count, matrix.parts * rank, columns), torch.zeros(count, rows, rank)
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
            inner = experts._apply_gate(self._product(experts, "gate_up_proj", rows, by_expert, ends))
        else:
            inner = experts.act_fn(self._product(experts, "up_proj", rows, by_expert, ends))
        outer = self._product(experts, "down_proj", inner, by_expert, ends) * shares.flatten()[order, None]
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        return outer[places].unflatten(0, chosen.shape).sum(1).to(hidden.dtype)

    def _product(
        self, experts: Any, name: str, rows: torch.Tensor, by_expert: torch.Tensor, ends: torch.Tensor
    ) -> torch.Tensor:
        weight = getattr(experts, name)
        product = functional.grouped_mm(rows, weight if experts.is_transposed else weight.transpose(1, 2), offs=ends)
        if experts.has_bias:
            product = product + getattr(experts, f"{name}_bias")[by_expert]
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
    by_name = {matrix.name: matrix for matrix in matrices}

    def made() -> Iterator[ExpertAdapters]:
        for place, experts in experts_of(pretrained):
            names = [name for name, _ in experts.named_parameters(recurse=False)]
            own = {name: by_name[f"{place}.{name}"] for name in names if f"{place}.{name}" in by_name}
            if own:
                yield ExpertAdapters(experts, own, rank, scale, dropout)

    return list(made())
