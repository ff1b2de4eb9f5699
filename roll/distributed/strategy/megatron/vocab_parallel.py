"""Log-probs and entropy where the vocabulary is divided among ranks, without the logits of all positions at once.

A rank holds the head's rows of its share of the vocabulary: [V / ranks, H]. Logits are computed for some positions at a
time, reduced to four numbers each (largest logit, sum of exponentials, the target's logit, and what the entropy needs),
and thrown away; the backward pass computes them again. Two all-reduces of vectors per call, however many chunks there
are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from roll.algorithms.distillation import Distillation
from roll.configs.sections.model import LOGITS_PER_CHUNK_OF_SHARES
from roll.errors import StrategyError
from roll.models.head_scores import PLAIN, Product
from roll.models.teacher_targets import TeacherTargets, divergence, pack_top_k_targets


@dataclass(frozen=True)
class VocabShard:
    """This rank's part of the vocabulary. Rows of the head beyond `vocab_size` are padding and never take part."""

    group: dist.ProcessGroup
    vocab_size: int
    temperature: float = 1.0
    logits_per_chunk: int = LOGITS_PER_CHUNK_OF_SHARES


def token_scores(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, share: VocabShard
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each target and entropy of the distribution it was drawn from. hidden [N, H], weight [V / ranks, H],
    targets [N] or [N, m] (all tokens, the same on every rank) -> fp32, log-probs of the targets' shape, entropy [N].

    The gradient of `hidden` is this rank's share; whoever made it the same on every rank sums it. An entropy that is
    not used costs one product per logit."""
    log_probs, entropy = _TokenScores.apply(hidden, weight, targets, share)  # type: ignore[misc]
    return log_probs, entropy


@torch.no_grad()
def likeliest(
    hidden: torch.Tensor, weight: torch.Tensor, count: int, share: VocabShard
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and ids of the likeliest tokens, [N, count] each, largest first and the same on every rank."""
    first = share.group.rank() * len(weight)
    shape = (len(hidden), count)
    values = hidden.new_full(shape, torch.finfo(torch.float32).min, dtype=torch.float32)
    ids = torch.zeros(shape, dtype=torch.int64, device=hidden.device)
    total = values.new_zeros(len(hidden))
    for span, logits, _, _ in _chunks(hidden, weight, ids, share):
        if logits.shape[1] == 0:
            continue
        top = logits.topk(min(count, logits.shape[1]))
        width = top.values.shape[1]
        values[span, :width], ids[span, :width] = top.values, top.indices + first
        total[span] = (logits - top.values[:, :1]).exp_().sum(1)
    largest = values[:, 0].clone()
    if share.group.size() > 1 and len(hidden):
        overall = largest.clone()
        dist.all_reduce(overall, dist.ReduceOp.MAX, group=share.group)
        total *= (largest - overall).exp()
        dist.all_reduce(total, group=share.group)
        largest = overall
        values, places = _of_all(values, share).topk(count)
        ids = _of_all(ids, share).gather(1, places)
    return values - (largest + total.log())[:, None], ids


def _of_all(part: torch.Tensor, share: VocabShard) -> torch.Tensor:
    parts = [torch.empty_like(part) for _ in range(share.group.size())]
    dist.all_gather(parts, part, group=share.group)
    return torch.cat(parts, 1)


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, share: VocabShard
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, ids = len(targets), targets if targets.dim() == 2 else targets[:, None]
        largest = hidden.new_full((count,), torch.finfo(torch.float32).min, dtype=torch.float32)
        # of exp(x), of exp(x) * x, and the x of each target
        sums = hidden.new_zeros((2 + ids.shape[1], count), dtype=torch.float32)
        for span, logits, local, inside in _chunks(hidden, weight, ids, share):
            if logits.shape[1] == 0:
                continue
            largest[span] = logits.amax(1)
            exponentials = (logits - largest[span, None]).exp_()
            sums[0, span] = exponentials.sum(1)
            sums[1, span] = exponentials.mul_(logits).sum(1)
            sums[2:, span] = torch.where(inside, logits.gather(1, local), 0.0).T
        overall = largest.clone()
        if share.group.size() > 1 and count:
            dist.all_reduce(overall, dist.ReduceOp.MAX, group=share.group)
            sums[:2] *= (largest - overall).exp()
            dist.all_reduce(sums, group=share.group)
        log_total = overall + sums[0].log()
        mean = sums[1] / sums[0]
        ctx.save_for_backward(hidden, weight, ids, log_total, mean)
        ctx.share = share
        log_probs = sums[2:] - log_total
        return log_probs[0] if targets.dim() == 1 else log_probs.T.contiguous(), log_total - mean

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:  # type: ignore[override]
        hidden, weight, ids, log_total, mean = ctx.saved_tensors
        of_log_probs, of_entropy = gradients
        pull = of_log_probs.reshape(ids.shape)
        of_tokens = pull.sum(1)
        share: VocabShard = ctx.share
        hidden_gradient = torch.zeros_like(hidden)
        trains_head = ctx.needs_input_grad[1]
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if trains_head else None
        for span, logits, local, inside in _chunks(hidden, weight, ids, share):
            if logits.shape[1] == 0:
                continue
            probs = (logits - log_total[span, None]).exp_()
            # d log p(target) / d x = [target] - p;  d entropy / d x = -p (x - mean)
            slope = logits.sub_(mean[span, None]).mul_(of_entropy[span, None]).add_(of_tokens[span, None])
            slope = slope.mul_(probs).neg_()
            slope.scatter_add_(1, local, torch.where(inside, pull[span], 0.0))
            slope = slope.div_(share.temperature).to(weight.dtype)
            hidden_gradient[span] = slope @ weight[: slope.shape[1]]
            if weight_gradient is not None:
                weight_gradient[: slope.shape[1]] += slope.T @ hidden[span]
        return hidden_gradient, None if weight_gradient is None else weight_gradient.to(weight.dtype), None, None


def _chunks(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, share: VocabShard
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(positions, their fp32 logits over this rank's real columns, the columns here of their ids [N, m], whether each
    is here at all)."""
    first = share.group.rank() * len(weight)
    columns = max(0, min(len(weight), share.vocab_size - first))
    step = max(1, share.logits_per_chunk // max(columns, 1))
    for start in range(0, len(ids), step):
        span = slice(start, min(start + step, len(ids)))
        logits = (hidden[span] @ weight[:columns].T).float()
        if share.temperature != 1:
            logits /= share.temperature
        local = ids[span] - first
        inside = (local >= 0) & (local < columns)
        yield span, logits, local.clamp(0, max(columns - 1, 0)), inside


# Lessons of teachers where the vocabulary is divided among ranks.


def vocab_parallel_targets(
    hidden: torch.Tensor, weight: torch.Tensor, distillation: Distillation, share: VocabShard
) -> torch.Tensor:
    """The likeliest tokens [2 k, N], as `pack_top_k_targets` has them; `share` is at the teacher's temperature."""
    share = replace(share, vocab_size=distillation.vocab_size)
    return pack_top_k_targets(*likeliest(hidden, weight, distillation.top_k, share)).T


def divergence_of_shares(
    hidden: torch.Tensor, weight: torch.Tensor, teacher_targets: TeacherTargets, share: VocabShard
) -> torch.Tensor:
    """How far a student is from its teacher [N], the same on every rank. The gradient of `hidden` is this rank's share,
    as that of `token_scores`."""
    distillation = teacher_targets.student_outputs.distillation
    if distillation.top_k:
        log_q, ids = teacher_targets.likeliest()
        share = replace(share, vocab_size=distillation.vocab_size, temperature=distillation.divergence.temperature)
        return distillation.divergence.of_likeliest(token_scores(hidden, weight, ids, share)[0], log_q)
    if share.group.size() > 1:
        raise StrategyError("the whole distribution of a teacher needs the student's head whole on a rank")
    products = [Product(hidden, weight[: share.vocab_size])]
    return divergence(products, None, PLAIN, teacher_targets, share.logits_per_chunk, compiled=False)
