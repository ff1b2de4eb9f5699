"""Log-probs and entropy where the vocabulary is divided among ranks, without the logits of all positions at once.

A rank holds the head's rows of its share of the vocabulary: [V / ranks, H]. Logits are computed for some positions at a
time, reduced to a few numbers each (largest logit, sums of exponentials, the target's logit, and what the entropy
needs), and thrown away; the backward pass computes them again. Two all-reduces of vectors per call, however many chunks
there are."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from roll.algorithms.distillation import Distillation
from roll.configs.sections.model import LOGITS_PER_CHUNK_OF_SHARES
from roll.errors import StrategyError
from roll.features.teachers.targets import TeacherTargets
from roll.models.head_scores import PLAIN, Product, left_out, pack_top_k_targets, with_rest


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
    targets [N] or [N, m] (all tokens, the same on every rank) -> fp32, log-probs [N], or [N, m + 1] with that of all
    other tokens together; entropy [N].

    The gradient of `hidden` is this rank's share; whoever made it the same on every rank sums it. An entropy that is
    not used costs one product per logit."""
    log_probs, entropy = _TokenScores.apply(hidden, weight, targets, share)  # type: ignore[misc]
    return log_probs, entropy


@torch.no_grad()
def likeliest(
    hidden: torch.Tensor, weight: torch.Tensor, count: int, share: VocabShard
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the likeliest tokens, and of all others together, [N, count + 1], and ids [N, count]: largest first
    and the same on every rank."""
    first = share.group.rank() * len(weight)
    shape = (len(hidden), count)
    values = hidden.new_full(shape, torch.finfo(torch.float32).min, dtype=torch.float32)
    ids = torch.zeros(shape, dtype=torch.int64, device=hidden.device)
    rest = values[:, :1].clone()  # log of the sum of exp of the others
    for span, logits, _, _ in _chunks(hidden, weight, ids, share):
        if logits.shape[1] == 0:
            continue
        top = logits.topk(min(count, logits.shape[1]))
        width = top.values.shape[1]
        values[span, :width], ids[span, :width] = top.values, top.indices + first
        rest[span, 0] = logits.scatter_(1, top.indices, -math.inf).logsumexp(1)
    if share.group.size() > 1 and len(hidden):
        every = _of_all(values, share)
        values, places = every.topk(count)
        ids = _of_all(ids, share).gather(1, places)
        rest = torch.cat((every.scatter_(1, places, -math.inf), _of_all(rest, share)), 1)
    log_rest = rest.logsumexp(1)
    return with_rest(values, log_rest, torch.logaddexp(values.logsumexp(1), log_rest)), ids


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
        # of exp(x), of exp(x) * x, of exp(x) but for the targets, and the x of each target
        sums = hidden.new_zeros((3 + ids.shape[1], count), dtype=torch.float32)
        for span, logits, local, inside in _chunks(hidden, weight, ids, share):
            if logits.shape[1] == 0:
                continue
            largest[span] = logits.amax(1)
            exponentials = (logits - largest[span, None]).exp_()
            sums[0, span] = exponentials.sum(1)
            sums[1, span] = exponentials.mul_(logits).sum(1)
            if targets.dim() == 2:
                sums[2, span] = (left_out(logits, local, inside) - largest[span, None]).exp_().sum(1)
            sums[3:, span] = torch.where(inside, logits.gather(1, local), 0.0).T
        overall = largest.clone()
        if share.group.size() > 1 and count:
            dist.all_reduce(overall, dist.ReduceOp.MAX, group=share.group)
            sums[:3] *= (largest - overall).exp()
            dist.all_reduce(sums, group=share.group)
        log_total = overall + sums[0].log()
        mean = sums[1] / sums[0]
        log_probs = sums[3] - log_total
        log_rest = None
        if targets.dim() == 2:
            log_probs = with_rest(sums[3:].T, overall + sums[2].log(), log_total)
            log_rest = log_probs[:, -1].clone()
        ctx.save_for_backward(hidden, weight, ids, log_total, log_rest, mean)
        ctx.share = share
        return log_probs, log_total - mean

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:  # type: ignore[override]
        hidden, weight, ids, log_total, log_rest, mean = ctx.saved_tensors
        of_log_probs, of_entropy = gradients
        pull = of_log_probs[:, None] if of_log_probs.dim() == 1 else of_log_probs
        of_tokens = pull.sum(1)
        share: VocabShard = ctx.share
        hidden_gradient = torch.zeros_like(hidden)
        trains_head = ctx.needs_input_grad[1]
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if trains_head else None
        for span, logits, local, inside in _chunks(hidden, weight, ids, share):
            if logits.shape[1] == 0:
                continue
            log_probs = logits - log_total[span, None]
            of_rest = None
            if log_rest is not None:
                # d log r / d x = p / r - p, and -p at targets, with the probability r of the others
                of_rest = (left_out(log_probs, local, inside) - log_rest[span, None]).exp_().mul_(pull[span, -1:])
            probs = log_probs.exp_()
            # d log p(target) / d x = [target] - p;  d entropy / d x = -p (x - mean)
            slope = logits.sub_(mean[span, None]).mul_(of_entropy[span, None]).add_(of_tokens[span, None])
            slope = slope.mul_(probs).neg_()
            slope.scatter_add_(1, local, torch.where(inside, pull[span, : ids.shape[1]], 0.0))
            if of_rest is not None:
                slope += of_rest
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
    """The likeliest tokens [2 k + 1, N], as `pack_top_k_targets` has them; `share` is at the teacher's temperature."""
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
    return teacher_targets.divergence(products, None, PLAIN, share.logits_per_chunk, compiled=False)
