"""Divergences of a student from a teacher, and the loss made of them, with their gradients, against loops over single
positions and tokens in float64, written from the formulas of docs/distillation.md. Not covered: that the head gives the
log-probs of ordinary logits (tests/unit/features/teachers/test_targets.py) and a strategy the gradient
(tests/parity/strategies/test_teacher_targets.py)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from roll.algorithms.distillation import Distillation, DistillLoss, Divergence
from roll.configs.tables.policy_losses import KdObjective
from roll.features.teachers.targets import StudentOutputs, TeacherTargets
from roll.models.head_scores import PLAIN, HeadRequest, Product, head_scores, pack_top_k_targets
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.metrics import MetricSums
from tests.helpers.log_probs import with_others

POSITIONS, VOCAB = 5, 9
OBJECTIVES = get_args(KdObjective)


def by_loop(kind: Divergence, p: list[torch.Tensor], q: list[float], head: set[int]) -> torch.Tensor:
    """Of one position, outcome by outcome. `head`: the teacher's likeliest outcomes."""
    total, s = torch.zeros((), dtype=torch.float64), kind.skew
    forward = torch.zeros((), dtype=torch.float64)
    reverse = torch.zeros((), dtype=torch.float64)
    in_head = in_tail = 0.0
    for i, (mine, theirs) in enumerate(zip(p, q, strict=True)):
        other = torch.tensor(theirs, dtype=torch.float64)
        forward = forward + other * torch.log(other / mine)
        reverse = reverse + mine * torch.log(mine / other)
        match kind.objective:
            case "js_divergence":
                middle = (mine + other) / 2
                total = total + mine * torch.log(mine / middle) / 2 + other * torch.log(other / middle) / 2
            case "skewed_forward_kl":
                total = total + other * torch.log(other / (s * other + (1 - s) * mine))
            case "skewed_reverse_kl":
                total = total + mine * torch.log(mine / (s * mine + (1 - s) * other))
        gap = abs(float(mine.detach()) - theirs)
        in_head, in_tail = (in_head + gap, in_tail) if i in head else (in_head, in_tail + gap)
    if kind.objective == "adaptive_kl":
        share = in_head / (in_head + in_tail)
        return share * forward + (1 - share) * reverse
    return {"forward_kl": forward, "reverse_kl": reverse}.get(kind.objective, total)


def head_of(q: list[float], alpha: float) -> set[int]:
    held, head = 0.0, set[int]()
    for i in sorted(range(len(q)), key=lambda i: -q[i]):
        if held < alpha:
            head.add(i)
        held += q[i]
    return head


def logits() -> tuple[torch.Tensor, torch.Tensor]:
    make = torch.Generator().manual_seed(2)
    mine, theirs = (3 * torch.randn(POSITIONS, VOCAB, generator=make, dtype=torch.float64) for _ in range(2))
    return mine.requires_grad_(), theirs


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("alpha", [0.5, 0.9])
def test_a_divergence_and_its_gradient_are_the_formula_token_by_token(objective: KdObjective, alpha: float) -> None:
    kind = Divergence(objective, adaptive_alpha=alpha, skew=0.3)
    weights = torch.linspace(0.5, 2, POSITIONS, dtype=torch.float64)
    found, wanted = [], []
    for loop in (False, True):
        mine, theirs = logits()
        log_p, log_q = torch.log_softmax(mine, -1), torch.log_softmax(theirs, -1)
        values = kind.of_all(log_p, log_q)
        if loop:
            q = log_q.exp().tolist()
            values = torch.stack(
                [by_loop(kind, [*log_p[n].exp()], q[n], head_of(q[n], alpha)) for n in range(POSITIONS)]
            )
        (values * weights).sum().backward()
        (wanted if loop else found).extend((values.detach(), mine.grad))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("k", [1, 3, VOCAB - 1])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_tokens_beyond_the_likeliest_are_one_outcome(objective: KdObjective, k: int) -> None:
    """Of k + 1 outcomes, the last of which has what is left of both distributions and is in nobody's head."""
    kind = Divergence(objective, adaptive_alpha=0.7, skew=0.2)
    found, wanted = [], []
    for loop in (False, True):
        mine, theirs = logits()
        log_p, top = torch.log_softmax(mine, -1), torch.log_softmax(theirs, -1).topk(k)
        if loop:
            values = []
            for n in range(POSITIONS):
                p = [log_p[n, i].exp() for i in top.indices[n]]
                q = top.values[n].exp().tolist()
                rest = torch.stack([log_p[n, i].exp() for i in range(VOCAB) if i not in top.indices[n]]).sum()
                values.append(by_loop(kind, [*p, rest], [*q, 1 - sum(q)], head_of(q, 0.7)))
            total = torch.stack(values)
        else:
            log_q = torch.log_softmax(theirs, -1)
            total = kind.of_likeliest(with_others(log_p, top.indices), with_others(log_q, top.indices))
        total.square().sum().backward()
        (wanted if loop else found).extend((total.detach(), mine.grad))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_student_that_is_its_teacher_is_no_way_from_it_and_far_ones_stay_finite(objective: KdObjective) -> None:
    """Single precision: logits that differ by hundreds, where one side's probabilities are 0 but for one token."""
    kind = Divergence(objective)
    make = torch.Generator().manual_seed(0)
    near = torch.randn(4, VOCAB, generator=make)
    far = torch.where(torch.arange(VOCAB) == 2, 40.0, near)
    for mine, theirs in ((near, near), (near, far), (far, near), (far, far)):
        given = mine.clone().requires_grad_()
        log_p, log_q = torch.log_softmax(given, -1), torch.log_softmax(theirs, -1)
        likeliest = (with_others(each, log_q.topk(3).indices) for each in (log_p, log_q))
        for values in (kind.of_all(log_p, log_q), kind.of_likeliest(*likeliest)):
            values.sum().backward(retain_graph=True)
            assert values.isfinite().all() and given.grad is not None and given.grad.isfinite().all()
            if mine is theirs:
                assert values.abs().max() < 1e-6
    if objective == "js_divergence":
        apart = kind.of_all(torch.log_softmax(-far, -1), torch.log_softmax(far, -1))
        assert 0.6 < float(apart.max()) <= math.log(2) + 1e-6


@pytest.mark.parametrize("columns", [1, 4, 50])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_rest_that_is_all_but_nothing_has_its_digits_from_the_head(objective: KdObjective, columns: int) -> None:
    """Single precision. The likeliest two tokens leave from .3 down to 1e-30 for the other seven, of teacher and
    student in turn: log-probs near 0 of the two have no digits of that. 1e-5 is what logits of 70 are rounded by."""
    kind, ways = Divergence(objective, skew=0.3), [(s, t) for s in (0.5, 13, 25, 70) for t in (0.5, 13, 25, 70)]
    make = torch.Generator().manual_seed(6)
    mine, theirs = (2 * torch.rand(len(ways), VOCAB, generator=make) for _ in range(2))
    for number, (student, teacher) in enumerate(ways):
        mine[number, :2] += student
        theirs[number, :2] += teacher
    states, request = torch.eye(len(ways)), HeadRequest(columns * len(ways), top_k=2)
    told = head_scores([Product(states, theirs.T)], None, torch.zeros(len(ways), dtype=torch.int64), request)
    assert told.top_log_probs is not None and told.top_ids is not None
    lesson = TeacherTargets(
        StudentOutputs(Distillation(kind, VOCAB, 2)), pack_top_k_targets(told.top_log_probs, told.top_ids)
    )
    weight = mine.T.contiguous().requires_grad_()
    found = lesson.divergence([Product(states, weight)], None, PLAIN, request.tile_elements, False)
    found.sum().backward()

    exact, wanted = mine.double().requires_grad_(), []
    for n in range(len(ways)):
        p, q = exact[n].exp() / exact[n].exp().sum(), theirs[n].double().exp()
        q, likeliest = q / q.sum(), told.top_ids[n].tolist()
        rest = [i for i in range(VOCAB) if i not in likeliest]
        outcomes = [float(q[i]) for i in likeliest]
        of_student = [*(p[i] for i in likeliest), torch.stack([p[i] for i in rest]).sum()]
        of_teacher = [*outcomes, sum(float(q[i]) for i in rest)]
        wanted.append(by_loop(kind, of_student, of_teacher, head_of(outcomes, kind.adaptive_alpha)))
    torch.stack(wanted).sum().backward()
    assert weight.grad is not None and exact.grad is not None
    torch.testing.assert_close(found.double(), torch.stack(wanted).detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weight.grad.T.double(), exact.grad, rtol=1e-5, atol=1e-5)


def micro_batch(mask: torch.Tensor, weights: torch.Tensor) -> MicroBatch:
    ids = torch.zeros(mask.shape, dtype=torch.int64)
    return MicroBatch(ids, torch.full((len(mask),), mask.shape[1]), mask, weights)


@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_the_loss_is_a_mean_over_all_tokens_of_the_update(weight: float) -> None:
    rng = np.random.default_rng(1)
    mask = torch.from_numpy(rng.random((4, 6)) < 0.6)
    given = [
        torch.from_numpy(-rng.random((4, 6))).requires_grad_(),
        torch.from_numpy(rng.random((4, 6))).requires_grad_(),
    ]
    row_weights = torch.tensor([1.0, 0.5, 2.0, 1.0], dtype=torch.float64)
    scale, loss, merged = LossScale(int(mask.sum()), 4), DistillLoss(weight), MetricSums()
    total = torch.zeros((), dtype=torch.float64)
    for rows in ([2], [0, 3, 1]):
        log_probs, divergence = (values[rows] for values in given)
        batch = micro_batch(mask[rows], row_weights[rows])
        part, sums = loss(TokenOutputs(log_probs=log_probs, divergence=divergence), batch, scale)
        total = total + part
        merged.merge([sums])
    total.backward()

    want, count = 0.0, int(mask.sum())
    for row, column in mask.nonzero().tolist():
        one = weight * float(given[1][row, column].detach()) - (1 - weight) * float(given[0][row, column].detach())
        want += float(row_weights[row]) * one / count
    assert float(total) == pytest.approx(want, rel=1e-12)
    each = torch.where(mask, row_weights[:, None], 0.0) / count
    torch.testing.assert_close(given[0].grad, -(1 - weight) * each)
    torch.testing.assert_close(given[1].grad, weight * each)
    told = merged.result()
    assert told["nll_mean"] == pytest.approx(-float(given[0][mask].mean()))
    assert told["divergence_mean"] == pytest.approx(float(given[1][mask].mean()))
    assert told["loss"] == pytest.approx(weight * told["divergence_mean"] + (1 - weight) * told["nll_mean"])
    with pytest.raises(ValueError, match="DistillLoss needs a teacher's lesson"):
        loss(replace(TokenOutputs(), log_probs=given[0]), micro_batch(mask, row_weights), scale)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_tokens_that_neither_can_say_add_nothing(objective: KdObjective) -> None:
    """Logits of -inf, as heads have them for rows that stand for no token: value and gradient are those without."""
    kind, (mine, theirs) = Divergence(objective, skew=0.3), logits()
    short = kind.of_all(torch.log_softmax(mine, -1), torch.log_softmax(theirs, -1))
    (wanted,) = torch.autograd.grad(short.sum(), mine)
    nothing = torch.full((POSITIONS, 2), -math.inf, dtype=torch.float64)
    longer = torch.cat((mine.detach(), nothing), 1).requires_grad_()
    found = kind.of_all(torch.log_softmax(longer, -1), torch.log_softmax(torch.cat((theirs, nothing), 1), -1))
    (gradient,) = torch.autograd.grad(found.sum(), longer)
    torch.testing.assert_close(found, short, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradient[:, :VOCAB], wanted, rtol=1e-12, atol=1e-14)
    assert not gradient[:, VOCAB:].any()


def test_what_one_alone_cannot_say_is_infinitely_far_in_one_direction_only() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]).log(), torch.tensor([0.25, 0.25, 0.5]).log()
    assert Divergence("reverse_kl").of_all(p, q).item() == pytest.approx(math.log(2))
    assert Divergence("forward_kl").of_all(p, q).item() == math.inf
    middle = 0.5 * (math.log(4 / 3) + 0.5 * math.log(2 / 3) + 0.5 * math.log(2))
    assert Divergence("js_divergence").of_all(p, q).item() == pytest.approx(middle)
