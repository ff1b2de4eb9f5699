"""Megatron's router with the load-balancing loss that all trainers have."""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, Self

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.moe.router import TopKRouter
from torch import nn

from roll.algorithms.moe_aux_loss import layer_balance


class ExpertChoice:
    """Choice of the experts that a token goes to. Megatron asks it in place of its own choice, by groups of experts
    that it ranks by the sum of their best `ranked_by`: 2 in DeepSeek-V3 (arXiv 2412.19437, as published), 1 in
    DeepSeek-V2, both of which Megatron (0.16) derives from other settings."""

    def __init__(self, ranked_by: int):
        self._ranked_by = ranked_by
        self._replayed: torch.Tensor | None = None
        self._again: deque[torch.Tensor | None] | None = None
        self.chosen = torch.empty(0)

    def give(self, routes: torch.Tensor | None, recomputes: bool) -> None:
        """The experts [tokens, topk] of the forward pass that follows, -1 where it chooses; None: it always does.
        `recomputes`: that pass may be computed again in a backward pass, when later ones have been given theirs."""
        self._replayed = routes
        if recomputes and self._again is None:
            self._again = deque()
        elif not recomputes:
            self._again = None

    def _of_this_pass(self) -> torch.Tensor | None:
        """Megatron's checkpoints compute without gradient first, and then again with one, in the same order."""
        if self._again is None:
            return self._replayed
        if torch.is_grad_enabled():
            return self._again.popleft() if self._again else self._replayed
        self._again.append(self._replayed)
        return self._replayed

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        default: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`scores` [tokens, E] -> those of the chosen, and the chosen [tokens, topk]."""
        within = scores if num_groups is None or group_topk is None else self._of_groups(scores, num_groups, group_topk)
        values, chosen = default(within, topk)
        replayed = self._of_this_pass()
        if replayed is None:
            self.chosen = chosen
            return values, chosen
        self.chosen = torch.where(replayed >= 0, replayed, chosen)
        return scores.gather(1, self.chosen), self.chosen

    def _of_groups(self, scores: torch.Tensor, num_groups: int, group_topk: int) -> torch.Tensor:
        """The scores of experts in the best groups, -inf for the others."""
        in_groups = scores.unflatten(1, (num_groups, -1))
        rank = in_groups.topk(self._ranked_by, dim=-1).values.sum(-1)
        is_out = torch.ones_like(rank, dtype=torch.bool).scatter(1, rank.topk(group_topk, dim=-1).indices, False)
        return in_groups.masked_fill(is_out[..., None], -torch.inf).flatten(1)


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
        self.choice = ExpertChoice(ranked_by=2 if self.score_function == "sigmoid" else 1)
        choice: Any = self.choice
        self.router_replay = choice

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """The bias stays in fp32 where the model becomes bf16: it decides between experts that are close."""
        bias = None if self.expert_bias is None else self.expert_bias.data
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if bias is not None:
            self.expert_bias.data = bias.to(self.expert_bias.device)
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

    def balance_metrics(self) -> torch.Tensor | float:
        """The sum over micro batches of this rank's part."""
        balance, self._balance = self._balance, 0.0
        return balance


def mean_balance(chunks: Iterable[nn.Module], device: torch.device) -> float:
    """Load-balancing loss: the mean over the layers of all stages, summed over the micro batches since the last call.
    Collective over the ranks that share micro batches."""
    routers = [module for chunk in chunks for module in chunk.modules() if isinstance(module, BalancingRouter)]
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    for router in routers:
        sums += torch.tensor([float(router.balance_metrics()), 0.0], dtype=torch.float64, device=device)
    dist.all_reduce(sums, group=parallel_state.get_tensor_and_context_parallel_group())
    sums[1] = len(routers)
    dist.all_reduce(sums, group=parallel_state.get_pipeline_model_parallel_group())
    return float(sums[0] / sums[1])


class StageRoutes:
    """The routers of one run of layers, which are given their experts and tell them. `layers` counts the model's layers
    with experts; that of an MTP head is none of them, and chooses for itself."""

    def __init__(self, model: nn.Module):
        routers = [module for module in model.modules() if isinstance(module, BalancingRouter)]
        config: Any = next(model.modules()).config
        pattern = config.moe_layer_freq if isinstance(config.moe_layer_freq, list) else [1] * config.num_layers
        before = [0, *accumulate(pattern)]
        numbered = [(int(router.layer_number or 1), router) for router in routers]
        self._routers = {before[n - 1]: router for n, router in numbered if n <= config.num_layers}
        self.layers, self.top_k = sum(pattern), int(config.moe_router_topk)
        self._shares_positions = bool(config.sequence_parallel)

    def give(self, routes: torch.Tensor | None, recomputes: bool) -> None:
        """`routes` [slots * rows, layers, k], of this rank's positions before tensor-parallel ranks share them."""
        if routes is not None and self._shares_positions:
            size = parallel_state.get_tensor_model_parallel_world_size()
            routes = routes.chunk(size)[parallel_state.get_tensor_model_parallel_rank()]
        for layer, router in self._routers.items():
            router.choice.give(None if routes is None else routes[:, layer], recomputes)

    def reported(self) -> dict[int, torch.Tensor]:
        """Experts that the routers chose in the last forward pass, by the number of their layer among those with
        experts: [slots * rows, k]. Collective over the tensor-parallel ranks if they share positions."""
        chosen = {layer: router.choice.chosen for layer, router in self._routers.items()}
        if not self._shares_positions:
            return chosen
        return {layer: gather_from_sequence_parallel_region(part) for layer, part in chosen.items()}
