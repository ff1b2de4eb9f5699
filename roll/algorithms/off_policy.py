"""The gap between the engine that sampled and the trainer that learns: importance weights and filters.

Both see the same weights, but other kernels and precisions give other log-probs, so a rollout is slightly off-policy
even when it is fresh. Truncated importance sampling: Yao et al., "Your efficient RL framework secretly brings you
off-policy RL training" (2025).
"""

from dataclasses import dataclass
from typing import Literal

import torch

from roll.algorithms.kl import MAX_LOG_RATIO
from roll.types.metrics import MetricSums

Granularity = Literal["token", "segment", "geometric", "sequence"]


@dataclass(frozen=True)
class ImportanceWeight:
    """min(p_train / p_rollout, upper_bound), a constant factor on the policy loss."""

    weight_type: Granularity = "token"
    upper_bound: float | None = 1.2


@dataclass(frozen=True)
class MismatchFilter:
    """Keeps tokens whose ratio p_train / p_rollout, and difference p_train - p_rollout, lie within bounds."""

    agg_type: Granularity = "token"
    ratio_enabled: bool = True
    ratio_low: float = 0.8
    ratio_high: float = 1.2
    diff_enabled: bool = False
    diff_low: float = -0.2
    diff_high: float = 0.2


@dataclass(frozen=True)
class TrainInferCorrection:
    """Corrects the mismatch of trainer and engine: at most one weight, and any number of filters. A token must pass all
    filters."""

    is_weight: ImportanceWeight | None = None
    filters: tuple[MismatchFilter, ...] = ()


def row_sums(values: torch.Tensor) -> torch.Tensor:
    """[B, 1] sums of values that are 0 outside the response mask."""
    return values.sum(dim=1, keepdim=True)


def row_means(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[B, 1] means over the response tokens of values that are 0 outside; 0 for a row without any."""
    return row_sums(values) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def spread(values: torch.Tensor, mask: torch.Tensor, granularity: Granularity) -> torch.Tensor:
    """Per-token values (0 outside `mask`) at another granularity, the same for all tokens that share it. [B, T].

    `token`: unchanged. `sequence`: the row's sum. `geometric`: the row's mean (of log-ratios: the log of the geometric
    mean). `segment`: the mean over each unbroken run of response tokens, one turn of a conversation.
    """
    match granularity:
        case "token":
            return values
        case "sequence":
            return row_sums(values).expand_as(values)
        case "geometric":
            return row_means(values, mask).expand_as(values)
        case "segment":
            begins = mask.clone()
            begins[:, 1:] &= ~mask[:, :-1]
            segments = begins.cumsum(dim=1)  # outside the mask a token joins the segment before it, adding 0 to its sum
            sums = values.new_zeros(values.shape[0], values.shape[1] + 1)
            totals = sums.scatter_add(1, segments, values)
            counts = sums.scatter_add(1, segments, mask.to(values.dtype))
            return (totals / counts.clamp(min=1)).gather(1, segments)


def ratio_of(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp, with the exponent kept within +-20 so that it cannot overflow."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def correct_mismatch(
    train_log_probs: torch.Tensor,
    rollout_log_probs: torch.Tensor,
    mask: torch.Tensor,
    correction: TrainInferCorrection,
    metrics: MetricSums,
) -> torch.Tensor:
    """The factor of each token's policy loss, 0 where a filter drops it. [B, T].

    Log-probs are 0 outside `mask`. The counts by which the loss divides stay those of the response mask.
    """
    num_tokens = mask.sum()
    log_ratio = train_log_probs - rollout_log_probs
    factor = torch.ones_like(log_ratio)
    if (weight := correction.is_weight) is not None:
        factor = ratio_of(spread(log_ratio.detach(), mask, weight.weight_type))
        metrics.add("is_weight_mean", (factor * mask).sum(), num_tokens)
        if weight.upper_bound is not None:
            metrics.add("is_weight_clip_fraction", ((factor > weight.upper_bound) & mask).sum(), num_tokens)
            factor = factor.clamp(max=weight.upper_bound)

    keep_mask = mask
    for rule in correction.filters:
        keep_mask = keep_mask & _within(log_ratio.detach(), train_log_probs.detach(), rollout_log_probs, mask, rule)
    if correction.filters:
        metrics.add("mismatch_kept_fraction", keep_mask.sum(), num_tokens)
    return factor * keep_mask


def _within(
    log_ratio: torch.Tensor, train: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor, rule: MismatchFilter
) -> torch.Tensor:
    keep_mask = torch.ones_like(mask)
    if rule.ratio_enabled:
        ratio = ratio_of(spread(log_ratio, mask, rule.agg_type))
        keep_mask &= (ratio >= rule.ratio_low) & (ratio <= rule.ratio_high)
    if rule.diff_enabled:
        difference = spread((train.exp() - rollout.exp()) * mask, mask, rule.agg_type)
        keep_mask &= (difference >= rule.diff_low) & (difference <= rule.diff_high)
    return keep_mask
