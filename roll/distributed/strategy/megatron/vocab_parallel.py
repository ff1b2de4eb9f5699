"""Log-probs and entropy where the vocabulary is divided among ranks, without the logits of all positions at once.

A rank holds the head's rows of its share of the vocabulary: [V / ranks, H]. Logits are computed for some positions at a
time, reduced to four numbers each (largest logit, sum of exponentials, the target's logit, and what the entropy needs),
and thrown away; the backward pass computes them again. Two all-reduces of vectors per call, however many chunks there
are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from roll.configs.model import LOGITS_PER_CHUNK_OF_SHARES


@dataclass(frozen=True)
class VocabShare:
    """This rank's part of the vocabulary. Rows of the head beyond `vocab_size` are padding and never take part."""

    group: dist.ProcessGroup
    vocab_size: int
    temperature: float = 1.0
    logits_per_chunk: int = LOGITS_PER_CHUNK_OF_SHARES


def token_scores(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, share: VocabShare
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each target and entropy of the distribution it was drawn from. hidden [N, H], weight [V / ranks, H],
    targets [N] (all tokens, the same on every rank) -> fp32 [N] each.

    The gradient of `hidden` is this rank's share; whoever made it the same on every rank sums it. An entropy that is
    not used costs one product per logit."""
    log_probs, entropy = _TokenScores.apply(hidden, weight, targets, share)  # type: ignore[misc]
    return log_probs, entropy


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, share: VocabShare
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(targets)
        largest = hidden.new_full((count,), torch.finfo(torch.float32).min, dtype=torch.float32)
        sums = hidden.new_zeros((3, count), dtype=torch.float32)  # of exp(x), of exp(x) * x, and the target's x
        for span, logits, local, inside in _chunks(hidden, weight, targets, share):
            if logits.shape[1] == 0:
                continue
            largest[span] = logits.amax(1)
            exponentials = (logits - largest[span, None]).exp_()
            sums[0, span] = exponentials.sum(1)
            sums[1, span] = exponentials.mul_(logits).sum(1)
            sums[2, span] = torch.where(inside, logits.gather(1, local[:, None])[:, 0], 0.0)
        overall = largest.clone()
        if share.group.size() > 1 and count:
            dist.all_reduce(overall, dist.ReduceOp.MAX, group=share.group)
            sums[:2] *= (largest - overall).exp()
            dist.all_reduce(sums, group=share.group)
        log_total = overall + sums[0].log()
        mean = sums[1] / sums[0]
        ctx.save_for_backward(hidden, weight, targets, log_total, mean)
        ctx.share = share
        return sums[2] - log_total, log_total - mean

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:  # type: ignore[override]
        hidden, weight, targets, log_total, mean = ctx.saved_tensors
        of_log_prob, of_entropy = gradients
        share: VocabShare = ctx.share
        hidden_gradient = torch.zeros_like(hidden)
        trains_head = ctx.needs_input_grad[1]
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if trains_head else None
        for span, logits, local, inside in _chunks(hidden, weight, targets, share):
            if logits.shape[1] == 0:
                continue
            probs = (logits - log_total[span, None]).exp_()
            # d log p(target) / d x = [target] - p;  d entropy / d x = -p (x - mean)
            slope = logits.sub_(mean[span, None]).mul_(of_entropy[span, None]).add_(of_log_prob[span, None])
            slope = slope.mul_(probs).neg_()
            slope.scatter_add_(1, local[:, None], torch.where(inside, of_log_prob[span], 0.0)[:, None])
            slope = slope.div_(share.temperature).to(weight.dtype)
            hidden_gradient[span] = slope @ weight[: slope.shape[1]]
            if weight_gradient is not None:
                weight_gradient[: slope.shape[1]] += slope.T @ hidden[span]
        return hidden_gradient, None if weight_gradient is None else weight_gradient.to(weight.dtype), None, None


def _chunks(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, share: VocabShare
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(positions, their fp32 logits over this rank's real columns, the target's column here, whether it is here at
    all)."""
    first = share.group.rank() * len(weight)
    columns = max(0, min(len(weight), share.vocab_size - first))
    step = max(1, share.logits_per_chunk // max(columns, 1))
    for start in range(0, len(targets), step):
        span = slice(start, min(start + step, len(targets)))
        logits = (hidden[span] @ weight[:columns].T).float()
        if share.temperature != 1:
            logits /= share.temperature
        local = targets[span] - first
        inside = (local >= 0) & (local < columns)
        yield span, logits, local.clamp(0, max(columns - 1, 0)), inside
