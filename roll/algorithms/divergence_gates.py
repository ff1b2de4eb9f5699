"""Objectives that stop a token by how far its probability has moved, not by its ratio: DPPO and CPPO."""

from dataclasses import dataclass

import torch

from roll.algorithms.objectives import PolicyTokens, count_clipped
from roll.algorithms.off_policy import ratio_of
from roll.configs.tables.policy_losses import DPPODivergence
from roll.types.metrics import MetricSums


@dataclass(frozen=True)
class DivergenceGate:
    """DPPO (arXiv 2602.04879): -min(sg(r), highest_weight) A log p, and 0 where the token has gone the way of its
    advantage and the policies are further apart than `high` (A > 0) or `low` (others). The divergence is of the two
    outcomes "this token" and "another one", p_old and p_new their first probabilities:

    - `tv`: |p_new - p_old|.
    - `kl`: KL(old || new) = p_old log(p_old / p_new) + (1 - p_old) log((1 - p_old) / (1 - p_new)).

    A ratio says little of a rare token, whose probability may double without changing the policy; this says it for all.
    p_old is p_new / r, so r is to be a token's own.

    Example: tv, high .2, A > 0: from .1 to .25 it learns (r is 2.5), from .5 to .75 it does not (r is 1.5).
    """

    kind: DPPODivergence = "tv"
    low: float = 0.2
    high: float = 0.2
    highest_weight: float = 20.0

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        log_new, ratio = tokens.log_probs.detach(), ratio_of(tokens.log_ratio.detach())
        log_old = log_new - tokens.log_ratio.detach()
        grew = log_new - log_old
        positive = tokens.advantages > 0
        apart = self._divergence(log_old, log_new)
        above = tokens.mask & positive & (grew > 0) & (apart > self.high)
        below = tokens.mask & ~positive & (grew < 0) & (apart > self.low)
        count_clipped(metrics, below, above, tokens.mask)
        weight = ratio.clamp(max=self.highest_weight).masked_fill(below | above, 0.0)
        return -weight * tokens.advantages * tokens.log_probs

    def _divergence(self, log_old: torch.Tensor, log_new: torch.Tensor) -> torch.Tensor:
        old, new = log_old.exp(), log_new.exp()
        if self.kind == "tv":
            return (new - old).abs()
        tiny = 1e-8  # of a token that is certain: log 0 otherwise
        return old * (log_old - log_new) + (1 - old) * torch.log((1 - old + tiny) / (1 - new + tiny))


@dataclass(frozen=True)
class PrefixBudget:
    """CPPO (arXiv 2606.10968): -min(sg(r), highest_weight) A log p, and 0 where a token goes the way of its advantage
    and its row has moved too far. Of the n response tokens of a row, token t = 1 .. n:

        D_t = |p_new - p_old|      w_t = floor + (1 - floor) (n - t) / (n - 1)      b = budget_scale q-quantile(D)
        w_t D_t > min(threshold, threshold + b' sum_(j<t) w_j - sum_(j<t) w_j D_j)

    with b' = b within [budget, 2 budget]. Early tokens, on which all others depend, weigh most, and a row whose first
    tokens have used up the budget leaves less to its later ones. Tokens that return to the old policy always learn.
    p_old is p_new / r, so r is to be a token's own.

    Example: floor 1, threshold .5, budget .001, A > 0, four tokens that were .5 each: of .8, .8, .8, .55 only the first
    learns; of .5, .5, .5, .55 all do.
    """

    threshold: float = 0.15
    floor: float = 0.8
    budget: float = 0.02
    budget_quantile: float = 0.9
    budget_scale: float = 1.0
    highest_weight: float = 20.0

    def __call__(self, tokens: PolicyTokens, metrics: MetricSums) -> torch.Tensor:
        mask, log_ratio = tokens.mask, tokens.log_ratio.detach()
        log_new = tokens.log_probs.detach()
        apart = (log_new.exp() - (log_new - log_ratio).exp()).abs() * mask
        counts = mask.sum(dim=1, keepdim=True)
        left = ((counts - mask.cumsum(dim=1)) / (counts - 1).clamp(min=1)).masked_fill(counts == 1, 1.0)
        weights = self.floor + (1 - self.floor) * left
        weights = weights * mask
        spent = weights * apart
        before = self._budgets(apart, mask) * (weights.cumsum(dim=1) - weights) - (spent.cumsum(dim=1) - spent)
        over = mask & (spent > self.threshold + before.clamp(max=0.0))
        below = over & (tokens.advantages < 0) & (log_ratio < 0)
        above = over & (tokens.advantages > 0) & (log_ratio > 0)
        count_clipped(metrics, below, above, mask)
        weight = ratio_of(log_ratio).clamp(max=self.highest_weight).masked_fill(below | above, 0.0)
        return -weight * tokens.advantages * tokens.log_probs

    def _budgets(self, apart: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """b' of each row, [B, 1]. The quantile lies between two of the row's tokens."""
        counts = mask.sum(dim=1, keepdim=True)
        ordered = apart.masked_fill(~mask, float("inf")).sort(dim=1).values
        place = self.budget_quantile * (counts - 1).clamp(min=0).double()
        lower, upper = (ordered.gather(1, at.long()) for at in (place.floor(), place.ceil()))
        quantile = torch.lerp(lower.double(), upper.double(), place - place.floor()).to(apart.dtype)
        quantile = torch.where(counts > 0, quantile, 0.0)  # of a row without response tokens it is infinite
        return (self.budget_scale * quantile).clamp(self.budget, 2 * self.budget)
