"""The load-balancing loss of mixture models beside any other loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from roll.algorithms.loss import Loss, Need
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums


def layer_balance(choices: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """n x E x sum_e f_e P_e of one layer and n tokens (Fedus et al., "Switch Transformers", eq. 4 to 6): f_e is the
    share of all choices that fell on expert e, P_e its mean probability before the choice. n where tokens are spread
    evenly.

    `choices` [E]: how often each expert was chosen, without gradient. `probabilities` [n, E], or those of some of the
    tokens: what several ranks find of the tokens of all adds up. 0 without a token.

    Example: 2 tokens of probabilities (.8, .2) and (.6, .4) that both chose the first: 2 x (.8 + .6) x 1 = 2.8.
    """
    shares = choices / choices.sum().clamp(min=1)
    return len(choices) * (shares * probabilities.sum(0)).sum()


def num_routed_tokens(lengths: torch.Tensor) -> int:
    """Tokens that are computed: all but each row's last, which predicts nothing."""
    return int((lengths - 1).clamp(min=1).sum())


@dataclass(frozen=True)
class BalancedLoss:
    """A loss, and `coef` x the balance of every layer's router, the mean over the `num_tokens` of the whole update. The
    balance is that within a micro batch, as trainers of mixtures have it: the one term that rows in other micro batches
    change."""

    loss: Loss
    coef: float
    num_tokens: int

    @property
    def needs(self) -> frozenset[Need]:
        return self.loss.needs | frozenset[Need]({"balance"})

    def __call__(self, outputs: TokenOutputs, batch: MicroBatch, scale: LossScale) -> tuple[torch.Tensor, MetricSums]:
        if outputs.balance is None:
            raise ValueError("BalancedLoss needs balance")
        total, sums = self.loss(outputs, batch, scale)
        sums.add("moe_aux_loss", outputs.balance.detach().mean(), num_routed_tokens(batch.lengths))
        return total + outputs.balance.sum() * (self.coef / self.num_tokens), sums


def with_balance(
    loss: Loss,
    coef: float | None,
    micro_batches: Sequence[MicroBatch],
    all_reduce_sum: Callable[[Sequence[float]], list[float]],
) -> Loss:
    """The loss of an update with the key moe_aux_loss_coef. Collective where that is set."""
    if not coef:
        return loss
    return BalancedLoss(loss, coef, tokens_of_update(micro_batches, all_reduce_sum))


def tokens_of_update(
    micro_batches: Sequence[MicroBatch], all_reduce_sum: Callable[[Sequence[float]], list[float]]
) -> int:
    """Number of tokens in the micro batches of all ranks."""
    return int(all_reduce_sum([sum(num_routed_tokens(batch.lengths) for batch in micro_batches)])[0])
