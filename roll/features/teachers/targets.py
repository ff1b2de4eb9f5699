"""A teacher's targets for the tokens of rows, and the divergence of a student's head from them, without the logits of
all positions at once.

A lesson is a matrix of one row per response token, in fp32: log-probs of the teacher's likeliest tokens and of all
others together, and then the ids (which fp32 holds exactly up to 2^24), or the teacher's hidden states, from which its
head makes the whole distribution where the student learns: hundreds of times less to carry than logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from roll.algorithms.distillation import Distillation
from roll.errors import StrategyError
from roll.models.head_scores import PLAIN, HeadRequest, LogitTransform, Product, TeacherHead, common, head_scores, wide


@dataclass(frozen=True)
class StudentOutputs:
    """Teacher data on the student's device. `weight`: the teacher's head, for hidden-state targets; None for top-k
    targets."""

    distillation: Distillation
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    transform: LogitTransform = PLAIN

    @classmethod
    def of(cls, distillation: Distillation, head: TeacherHead | None, device: torch.device) -> StudentOutputs:
        if head is None:
            return cls(distillation)
        bias = None if head.bias is None else torch.tensor(head.bias, dtype=head.dtype, device=device)
        weight = torch.tensor(head.weight, dtype=head.dtype, device=device)
        return cls(
            distillation, weight, bias, replace(head.transform, temperature=distillation.divergence.teacher_temperature)
        )


@dataclass(frozen=True)
class TeacherTargets:
    """Targets from the teacher for some response tokens [n, ...], and the student's outputs for them."""

    student_outputs: StudentOutputs
    values: torch.Tensor

    def at(self, tokens: torch.Tensor) -> TeacherTargets:
        """The targets of these response tokens only."""
        return replace(self, values=self.values.index_select(0, tokens))

    def likeliest(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs [n, k + 1], the last of all other tokens together, and ids [n, k]."""
        k = self.values.shape[1] // 2
        return self.values[:, : k + 1], self.values[:, k + 1 :].to(torch.int64)

    def at_positions(self, mask: torch.Tensor, positions: torch.Tensor) -> TeacherTargets:
        """The targets of the response tokens at flat positions of the mask."""
        return self.at(among_response_tokens(mask, positions))

    def divergence(
        self,
        products: Sequence[Product],
        bias: torch.Tensor | None,
        transform: LogitTransform,
        elements: int,
        compiled: bool,
    ) -> torch.Tensor:
        """How far a student is from its teacher at each of the lesson's tokens, fp32 [n]; it learns, and the teacher
        does not. Its logits are the sum of the products, and the bias; at most `elements` of them exist at a time."""
        distillation = self.student_outputs.distillation
        transform = replace(transform, temperature=distillation.divergence.temperature)
        products, bias = common(products, bias, distillation.vocab_size)
        if distillation.top_k:
            log_q, ids = self.likeliest()
            log_p = head_scores(products, bias, ids, HeadRequest(elements, transform, compiled=compiled)).log_probs
            return distillation.divergence.of_likeliest(log_p, log_q.to(log_p.dtype))
        flat = [tensor for product in products for tensor in product]
        values: torch.Tensor = _OverVocabulary.apply(self, transform, elements, bias, *flat)  # type: ignore[assignment]
        return values

    def divergences(self, logits: torch.Tensor, span: slice) -> torch.Tensor:
        """Divergence at the tokens of `span`, from a student's logits over the whole vocabulary."""
        teacher = self.student_outputs
        assert teacher.weight is not None
        states = self.values[span].to(teacher.weight.dtype)
        theirs = teacher.transform.logits(functional.linear(states, teacher.weight, teacher.bias))
        compare = teacher.distillation.divergence
        return compare.of_all(torch.log_softmax(logits, -1), torch.log_softmax(theirs.to(logits.dtype), -1))


def targets_of(outputs: StudentOutputs | None, values: torch.Tensor | None) -> TeacherTargets | None:
    """The lesson of a micro batch, if it has one. StrategyError where nobody said what to make of it."""
    if values is None:
        return None
    if outputs is None:
        raise StrategyError("rows with a teacher's targets came before set_teacher_head()")
    return TeacherTargets(outputs, values)


def among_response_tokens(mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The numbers, in the order of lessons, of the response tokens at flat positions of the mask. Example: of [0 1 0 1]
    position 3 is the response token 1."""
    return (mask.reshape(-1).cumsum(0) - 1).index_select(0, positions)


class _OverVocabulary(torch.autograd.Function):
    """Some positions at a time, with all their logits on both sides; the backward pass computes them again."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        teacher_targets: TeacherTargets,
        transform: LogitTransform,
        elements: int,
        bias: torch.Tensor | None,
        *flat: torch.Tensor,
    ) -> torch.Tensor:
        values = flat[0].new_empty(len(flat[0]), dtype=wide(flat[0].dtype))
        for span in _spans(flat, elements):
            values[span] = teacher_targets.divergences(transform.logits(_raw(flat, bias, span)), span)
        ctx.teacher_targets, ctx.transform, ctx.elements = teacher_targets, transform, elements
        ctx.save_for_backward(bias, *flat)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        bias, *flat = ctx.saved_tensors
        teacher_targets: TeacherTargets = ctx.teacher_targets
        grown = [
            torch.zeros_like(tensor, dtype=wide(tensor.dtype)) if wanted and tensor is not None else None
            for tensor, wanted in zip((bias, *flat), ctx.needs_input_grad[3:], strict=True)
        ]
        of_bias, *of_flat = grown
        for span in _spans(flat, ctx.elements):
            with torch.enable_grad():
                raw = _raw(flat, bias, span).detach().requires_grad_()
                values = teacher_targets.divergences(ctx.transform.logits(raw), span)
                (slope,) = torch.autograd.grad(values, raw, gradient[span])
            if of_bias is not None:
                of_bias += slope.sum(0)
            for i in range(0, len(flat), 2):
                of_states, of_weight = of_flat[i], of_flat[i + 1]
                if of_states is not None:
                    of_states[span] = slope @ flat[i + 1]
                if of_weight is not None:
                    of_weight += slope.T @ flat[i][span]
        pairs = zip(grown, (bias, *flat), strict=True)
        return None, None, None, *(None if part is None else part.to(tensor.dtype) for part, tensor in pairs)


def _raw(flat: Sequence[torch.Tensor], bias: torch.Tensor | None, span: slice) -> torch.Tensor:
    """The products of some positions over all columns."""
    raw = functional.linear(flat[0][span], flat[1], bias)
    for i in range(2, len(flat), 2):
        raw = raw + functional.linear(flat[i][span], flat[i + 1])
    return raw


def _spans(flat: Sequence[torch.Tensor], elements: int) -> Iterator[slice]:
    step = max(1, elements // max(len(flat[1]), 1))
    for start in range(0, len(flat[0]), step):
        yield slice(start, min(start + step, len(flat[0])))
