"""Megatron's router with the load-balancing loss that all trainers have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.moe.router import TopKRouter
from torch import nn

from roll.algorithms.router_balance import layer_balance


class ExpertChoice:
    """Which experts a token goes to. Megatron asks it in place of its own choice, by groups of experts that it ranks by
    the sum of their best `ranked_by`: 2 in DeepSeek-V3 (arXiv 2412.19437, as published), 1 in DeepSeek-V2, both of
    which Megatron (0.16) derives from other settings."""

    def __init__(self, ranked_by: int):
        self._ranked_by = ranked_by

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        default: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`scores` [tokens, E] -> those of the chosen, and the chosen [tokens, topk]."""
        if num_groups is None or group_topk is None:
            return default(scores, topk)
        in_groups = scores.unflatten(1, (num_groups, -1))
        kept = in_groups.topk(self._ranked_by, dim=-1).values.sum(-1).topk(group_topk, dim=-1).indices
        is_out = torch.ones_like(in_groups, dtype=torch.bool).index_put(
            (torch.arange(len(kept), device=kept.device)[:, None], kept), torch.tensor(False, device=kept.device)
        )
        return scores.masked_fill(is_out.flatten(1), -torch.inf).topk(topk, dim=-1)


class BalancingRouter(TopKRouter):
    """Megatron (0.16) multiplies its own loss by the tokens of a rank, so that ranks that share a micro batch weigh
    less than one alone, and by how many are padding. Here the balance counts the tokens of all of them.

    The loss hangs on the router's output, so it is there once for each micro batch, recomputed or not, on every stage
    of a pipeline. `moe_aux_loss_coeff` is what the gradient is multiplied by: for the mean over the tokens of an update
    the coefficient / these.
    """

    _balance: torch.Tensor | float = 0.0  # of micro batches, since it was last told

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.expert_bias is not None:
            # Frozen, as a parameter: it is loaded, saved and sent like any other.
            bias = nn.Parameter(torch.zeros_like(self.expert_bias), requires_grad=False)
            del self.expert_bias
            self.expert_bias = bias
        choice: Any = ExpertChoice(ranked_by=2 if self.score_function == "sigmoid" else 1)
        self.router_replay = choice

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """The bias stays in fp32 where the model becomes bf16: it decides between experts that are close."""
        kept = None if self.expert_bias is None else self.expert_bias.data
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if kept is not None:
            self.expert_bias.data = kept.to(self.expert_bias.device)
        return self

    def _apply_aux_loss(
        self,
        probs: torch.Tensor,
        scores_for_aux_loss: torch.Tensor,
        routing_map: torch.Tensor,
        with_padding_mask: bool = False,
    ) -> torch.Tensor:
        coeff = self.get_aux_loss_coeff("aux_loss")
        if coeff == 0:
            return probs
        choices = routing_map.sum(0).float()
        dist.all_reduce(choices, group=self.tp_cp_group)
        balance = layer_balance(choices, scores_for_aux_loss)
        self._balance = self._balance + balance.detach()
        return MoEAuxLossAutoScaler.apply(probs, balance * coeff)  # type: ignore[return-value]

    def told_balance(self) -> torch.Tensor | float:
        """The sum over micro batches of this rank's part."""
        told, self._balance = self._balance, 0.0
        return told


def mean_balance(chunks: Iterable[nn.Module], device: torch.device) -> float:
    """Of the layers of all stages, the sum over the micro batches since the last call. Collective over the ranks that
    share micro batches."""
    routers = [module for chunk in chunks for module in chunk.modules() if isinstance(module, BalancingRouter)]
    found = torch.zeros(2, dtype=torch.float64, device=device)
    for router in routers:
        found += torch.tensor([float(router.told_balance()), 0.0], dtype=torch.float64, device=device)
    dist.all_reduce(found, group=parallel_state.get_tensor_and_context_parallel_group())
    found[1] = len(routers)
    dist.all_reduce(found, group=parallel_state.get_pipeline_model_parallel_group())
    return float(found[0] / found[1])
