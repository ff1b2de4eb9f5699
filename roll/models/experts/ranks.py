"""Experts of a mixture on several ranks: each has some of them, and computes the tokens of all ranks that its experts
are chosen for (Lepikhin et al., "GShard", arXiv 2006.16668, section 3.2)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Weights = Callable[[nn.Module], Mapping[str, torch.Tensor]]
OWN_FORWARD = "own_forward"
"""Attribute that overrides an expert module's forward: a function that is called with the module first."""


def experts_of(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules (and their names) that hold all experts of a layer in stacked weights [experts, ...] and are called
    with (hidden [n, H], experts [n, k], weights [n, k]) -> [n, H], as those that transformers decorates with
    use_experts_implementation."""
    return [(name, module) for name, module in root.named_modules() if _is_experts(module)]


def _is_experts(module: nn.Module) -> bool:
    return type(getattr(module, "num_experts", None)) is int and hasattr(module, "is_concatenated")


@dataclass(frozen=True)
class ExpertRanks:
    """The ranks that have a model's experts among them, neighbouring ones each, in the order of the ranks."""

    group: dist.ProcessGroup
    size: int

    def divide(self, experts: nn.Module, weights: Weights) -> None:
        """Changes the module's forward pass into one with this rank's experts, whose weights [experts / size, ...]
        `weights` returns by name, and those of the other ranks."""
        experts.forward = partial(self._forward, experts, weights)

    def _forward(
        self,
        experts: nn.Module,
        weights: Weights,
        hidden: torch.Tensor,
        chosen: torch.Tensor,
        shares: torch.Tensor,
    ) -> torch.Tensor:
        """`hidden` [n, H] through the experts `chosen` [n, k], each times its share [n, k], and summed: [n, H]. Every
        rank calls it as often as the others, if with no tokens."""
        top_k, mine = chosen.shape[1], int(experts.num_experts) // self.size  # type: ignore[arg-type]
        by_expert, order = chosen.flatten().sort(stable=True)
        counts = by_expert.bincount(minlength=mine * self.size).view(self.size, mine)
        there = torch.empty_like(counts)  # [rank, expert of mine]: the rows that rank sends for that expert
        dist.all_to_all_single(there, counts, group=self.group)
        num_sent, num_received = torch.stack([counts.sum(1), there.sum(1)]).tolist()
        rows = self._exchanged(hidden[order // top_k], num_sent, num_received)
        local = torch.arange(mine, device=chosen.device).repeat(self.size)
        local = local.repeat_interleave(there.flatten(), output_size=sum(num_received))  # which spares another wait
        computed = _computed(_Share(experts, weights(experts), mine), rows, local)
        back = self._exchanged(computed, num_received, num_sent)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        products = back[places].unflatten(0, chosen.shape) * shares[..., None]
        return products.sum(1).to(hidden.dtype)

    def _exchanged(self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]) -> torch.Tensor:
        received_rows: torch.Tensor = _Exchange.apply(rows, sent, received, self.group)  # type: ignore[assignment]
        return received_rows


class _Share:
    """This rank's experts as transformers' own forward functions see a module of all."""

    def __init__(self, experts: nn.Module, weights: Mapping[str, torch.Tensor], num_experts: int):
        self.__dict__ |= weights
        self.num_experts = num_experts
        self._experts = experts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._experts, name)

    def __call__(self, *arguments: torch.Tensor) -> torch.Tensor:
        forward: Any = vars(self._experts).get(OWN_FORWARD, type(self._experts).forward)
        return forward(self, *arguments)


def _computed(experts: _Share, rows: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """Each of `rows` [m, H] through the one expert that `local` [m] names."""
    if len(rows) == 0:
        # The ranks with the same experts wait for a gradient, and transformers' eager loop over the experts that are
        # chosen would give none. A row of zeros goes through the first expert, and nothing depends on it.
        return _computed(experts, rows.new_zeros(1, rows.shape[1]), local.new_zeros(1))[:0] + rows
    return experts(rows, local[:, None], rows.new_ones(len(rows), 1))


class _Exchange(torch.autograd.Function):
    """The first `sent[0]` rows go to rank 0 and so on; the gradient goes back the same way."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        received_rows = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(received_rows, rows.contiguous(), list(received), list(sent), group=group)
        return received_rows

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:  # type: ignore[override]
        return _Exchange.apply(gradient, ctx.received, ctx.sent, ctx.group), None, None, None  # type: ignore[return-value]


def whole_shape(weight: nn.Parameter) -> tuple[int, ...]:
    """Shape of the whole weight, which ZeRO-3 has divided."""
    return tuple(getattr(weight, "ds_shape", weight.shape))
