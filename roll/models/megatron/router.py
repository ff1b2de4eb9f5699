"""Megatron's router with the load-balancing loss that all trainers have."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.moe.router import TopKRouter
from torch import nn

from roll.algorithms.router_balance import layer_balance


class BalancingRouter(TopKRouter):
    """Megatron (0.16) multiplies its own loss by the tokens of a rank, so that ranks that share a micro batch weigh
    less than one alone, and by how many are padding. Here the balance counts the tokens of all of them.

    The loss hangs on the router's output, so it is there once for each micro batch, recomputed or not, on every stage
    of a pipeline. `moe_aux_loss_coeff` is what the gradient is multiplied by: for the mean over the tokens of an update
    the coefficient / these.
    """

    _balance: torch.Tensor | float = 0.0  # of micro batches, since it was last told

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
