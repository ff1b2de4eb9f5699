"""Losses and their gradients against loops over single tokens in float64, written from the formulas of
docs/algorithms.md.

The loops share no code with roll.algorithms and take plain Python numbers; the gradient is autograd's through scalar
operations. Not covered: that a strategy scales and sums micro batches correctly (its own parity tests), and float32
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch

from roll.algorithms.divergence_gates import DivergenceGate, PrefixBudget
from roll.algorithms.kl import KLEstimator, estimate_kl
from roll.algorithms.loss import Aggregation, LossAggMode, SupervisedLoss
from roll.algorithms.objectives import (
    BoundedWeight,
    ClippedGeometricMean,
    ClippedLogRatio,
    ClippedRatio,
    Objective,
    PolicyGradient,
    PolicyTokens,
    RatioGate,
    SoftGate,
    SquaredPenalty,
    TaperedWeight,
)
from roll.algorithms.off_policy import Granularity, ImportanceWeight, MismatchFilter, TrainInferCorrection
from roll.algorithms.policy_loss import PolicyLoss, ValueLoss, explained_variance
from roll.types.batch import TrainBatch
from roll.types.metrics import MetricSums
from tests.unit.algorithms.rows import apply_loss, full_scale, near, random_samples, random_train_batch

MAX_LENGTH = 9
MODES: list[LossAggMode] = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
GRANULARITIES: list[Granularity] = ["token", "segment", "geometric", "sequence"]

# Inputs other than the outputs under test are float32, so a difference of two of them carries float32 rounding.
RTOL = 2e-6


def response_tokens(batch: TrainBatch) -> list[list[int]]:
    """Flat positions of each row's response tokens."""
    rows, start = [], 0
    for length in batch.samples.lengths.tolist():
        rows.append([t for t in range(start, start + length) if batch.samples.response_mask[t]])
        start += length
    return rows


def aggregated(rows: Sequence[Sequence[torch.Tensor]], weights: Sequence[float], mode: str) -> torch.Tensor:
    filled = [(row, w) for row, w in zip(rows, weights, strict=True) if len(row)]
    total = torch.zeros((), dtype=torch.float64)
    for row, w in filled:
        of_row = torch.zeros((), dtype=torch.float64)
        for value in row:
            of_row = of_row + value
        if mode == "seq-mean-token-mean":
            of_row = of_row / len(row)
        if mode == "seq-mean-token-sum-norm":
            of_row = of_row / MAX_LENGTH
        total = total + w * of_row
    return total / (sum(len(row) for row, _ in filled) if mode == "token-mean" else len(filled))


def mean_over(positions: Sequence[int], values: dict[int, torch.Tensor]) -> torch.Tensor:
    return torch.stack([values[t] for t in positions]).mean()


def shared(kind: str, row: Sequence[int], values: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Each token's value at a granularity, by its definition."""
    if kind == "token":
        return {t: values[t] for t in row}
    if kind == "sequence":
        return {t: torch.stack([values[u] for u in row]).sum() for t in row}
    if kind == "geometric":
        return {t: mean_over(row, values) for t in row}
    result = {}
    for t in row:
        first = t
        while first - 1 in row:
            first -= 1
        last = t
        while last + 1 in row:
            last += 1
        result[t] = mean_over(range(first, last + 1), values)
    return result


def slow_policy_loss(loss: PolicyLoss, batch: TrainBatch, theta: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
    assert batch.ref_log_probs is not None
    policy_rows, kl_rows, entropy_rows = [], [], []
    for row in response_tokens(batch):
        rollout = {t: float(batch.samples.rollout_log_probs[t]) for t in row}
        old = {
            t: theta[t].detach() if batch.old_log_probs is None else torch.tensor(float(batch.old_log_probs[t]))
            for t in row
        }
        old = {t: value.double() for t, value in old.items()}
        log_ratio = {t: theta[t] - old[t] for t in row}
        if loss.importance_sampling == "seq":
            log_ratio = shared("geometric", row, log_ratio)
        elif loss.importance_sampling == "segment":
            log_ratio = shared("segment", row, log_ratio)
        elif loss.importance_sampling == "product" and row:
            log_ratio = shared("sequence", row, log_ratio)
        sharers = len(row) if loss.importance_sampling == "product" else 1  # of one (log r)^2
        factor = slow_factor(
            loss.correction, row, {t: theta[t] if batch.old_log_probs is None else old[t] for t in row}, rollout
        )

        if isinstance(loss.objective, ClippedGeometricMean):
            log_ratio = slow_geometric_mean(loss.objective, row, log_ratio, batch.advantages)
        settled = set[int]()
        if isinstance(loss.objective, PrefixBudget):
            settled = slow_settled(loss.objective, row, theta, old, batch.advantages)
        policy, kl = [], []
        for t in row:
            advantage = float(batch.advantages[t])
            value = slow_objective(loss.objective, theta[t], log_ratio[t], advantage, sharers)
            policy.append(value * factor[t] * (t not in settled))
            d = theta[t] - float(batch.ref_log_probs[t])
            assert loss.kl_loss_estimator != "full", "that one is test_full_kl_against_dense.py's"
            kl.append(slow_kl(loss.kl_loss_estimator, d))
        policy_rows.append(policy)
        kl_rows.append(kl)
        entropy_rows.append([entropy[t] for t in row])

    mode, ones = loss.aggregation.mode, [1.0] * len(policy_rows)
    policy_loss = aggregated(policy_rows, batch.samples.loss_weights.tolist(), mode)
    kl_loss = aggregated(kl_rows, ones, mode)
    bonus = aggregated(entropy_rows, ones, mode)
    return loss.rl_loss_coef * (policy_loss + loss.kl_loss_coef * kl_loss) - loss.entropy_loss_coef * bonus


def slow_geometric_mean(
    objective: ClippedGeometricMean, row: Sequence[int], log_ratio: dict[int, torch.Tensor], advantages: np.ndarray
) -> dict[int, torch.Tensor]:
    """Of each token, the log of the row's product of bounded ratios, to the power of 1 / tokens."""
    total = torch.zeros((), dtype=torch.float64)
    for t in row:
        bound = objective.high if advantages[t] > 0 else -objective.low
        total = total + (bound if (log_ratio[t].item() - bound) * advantages[t] > 0 else log_ratio[t])
    return {t: total / len(row) for t in row}


def slow_settled(
    objective: PrefixBudget,
    row: Sequence[int],
    theta: torch.Tensor,
    old: dict[int, torch.Tensor],
    advantages: np.ndarray,
) -> set[int]:
    """The tokens of a row that CPPO drops: those that leave the old policy beyond what their place and the tokens
    before them allow."""
    new_probs = {t: math.exp(theta[t].item()) for t in row}
    apart = {t: abs(new_probs[t] - math.exp(float(old[t]))) for t in row}
    quantile = float(np.quantile([apart[t] for t in row], objective.budget_quantile)) if row else 0.0
    budget = min(max(objective.budget_scale * quantile, objective.budget), 2 * objective.budget)
    settled, spent, weighed = set[int](), 0.0, 0.0
    for place, t in enumerate(row):
        weight = 1.0 if len(row) == 1 else 1 - (1 - objective.floor) * place / (len(row) - 1)
        allowed = min(objective.threshold, objective.threshold + budget * weighed - spent)
        leaves = advantages[t] * (theta[t].item() - float(old[t])) > 0
        if leaves and weight * apart[t] > allowed:
            settled.add(t)
        spent, weighed = spent + weight * apart[t], weighed + weight
    return settled


def slow_kl(estimator: KLEstimator, d: torch.Tensor) -> torch.Tensor:
    match estimator:
        case "k1":
            return d
        case "k2":
            return d * d / 2
        case "k3":
            tangent = math.exp(20) * (1 - d - 20)
            return (tangent if d.item() < -20 else torch.exp(-d)) - 1 + d
        case "abs":
            return d if d.item() > 0 else -d
    raise NotImplementedError(estimator)


def slow_objective(
    objective: Objective, log_prob: torch.Tensor, log_ratio: torch.Tensor, advantage: float, sharers: int
) -> torch.Tensor:
    r = math.exp(log_ratio.item())
    match objective:
        case ClippedRatio(low, high, dual_clip):
            assert low is not None
            assert high is not None
            ratio = torch.exp(log_ratio)
            clipped = min(max(r, 1 - low), 1 + high)
            bounded = ratio if clipped == r else torch.tensor(clipped, dtype=torch.float64)
            value = min(ratio * advantage, bounded * advantage, key=lambda x: x.item())
            if dual_clip is not None and advantage < 0:
                floor = torch.tensor(dual_clip * advantage, dtype=torch.float64)
                value = max(value, floor, key=lambda x: x.item())
            return -value
        case PolicyGradient(damping):
            return -advantage * log_prob / (1 + damping)
        case BoundedWeight(lowest, highest, drops_settled):
            weight = min(max(r, lowest), highest)
            if drops_settled and ((advantage > 0 and r > highest) or (advantage < 0 and r < lowest)):
                weight = 0.0
            return -weight * advantage * log_prob
        case TaperedWeight(positive, negative):
            return -(positive if advantage > 0 else negative * min(r, 1.0)) * advantage * log_prob
        case RatioGate(clip, low, high, low_prime, high_prime, weight, temp, regularizer, coef):
            outside = r < 1 - low or r > 1 + high
            if clip == "one-side":
                outside = (advantage > 0 and r > 1 + high) or (advantage < 0 and r < 1 - low)
            returns = (advantage > 0 and r <= 1 - low_prime) or (advantage < 0 and r >= 1 + high_prime)
            learns = clip == "none" or not outside or (clip == "ring" and returns)
            factor = {"none": 1.0, "importance_sampling": r, "advantage": math.exp(advantage / temp)}[weight]
            terms = {"none": 0.0, "forward-kl": -log_prob, "k2": log_ratio * log_ratio / sharers}
            return -factor * learns * advantage * log_prob + coef * terms[regularizer]
        case ClippedLogRatio(epsilon):
            bound = math.log(1 + epsilon)
            inside = abs(log_ratio.item()) <= bound
            return -advantage * (log_ratio if inside else torch.tensor(math.copysign(bound, log_ratio.item())).double())
        case DivergenceGate(kind, low, high, most):
            new = math.exp(log_prob.item())
            old = new / r
            apart = abs(new - old)
            if kind == "kl":
                apart = old * math.log(old / new) + (1 - old) * math.log((1 - old) / (1 - new))
            settled = (new > old and apart > high) if advantage > 0 else (new < old and apart > low)
            return -(0.0 if settled else min(r, most)) * advantage * log_prob
        case PrefixBudget():
            return -min(r, objective.highest_weight) * advantage * log_prob
        case ClippedGeometricMean():
            return -torch.exp(log_ratio) * advantage
        case SoftGate(positive, negative):
            tau = positive if advantage > 0 else negative
            return -4 / tau / (1 + torch.exp(-tau * (torch.exp(log_ratio) - 1))) * advantage
        case SquaredPenalty(tau):
            return -advantage * log_prob + tau * log_ratio * log_ratio / sharers / 2
    raise NotImplementedError(objective)


def slow_factor(
    correction: TrainInferCorrection | None,
    row: Sequence[int],
    train: dict[int, torch.Tensor],
    rollout: dict[int, float],
) -> dict[int, torch.Tensor]:
    factor = {t: torch.tensor(1.0, dtype=torch.float64) for t in row}
    if correction is None or not row:
        return factor
    gap = {t: train[t] - rollout[t] for t in row}
    if (weight := correction.is_weight) is not None:
        for t, value in shared(weight.weight_type, row, gap).items():
            w = torch.exp(value.detach())
            bounded = weight.upper_bound is not None and w.item() > weight.upper_bound
            factor[t] = torch.tensor(weight.upper_bound, dtype=torch.float64) if bounded else w
    for rule in correction.filters:
        ratios = shared(rule.agg_type, row, {t: g.detach() for t, g in gap.items()})
        differences = shared(rule.agg_type, row, {t: torch.exp(train[t].detach()) - math.exp(rollout[t]) for t in row})
        for t in row:
            bad_ratio = not rule.ratio_low <= math.exp(ratios[t].item()) <= rule.ratio_high
            bad_difference = not rule.diff_low <= differences[t].item() <= rule.diff_high
            if (rule.ratio_enabled and bad_ratio) or (rule.diff_enabled and bad_difference):
                factor[t] = torch.tensor(0.0, dtype=torch.float64)
    return factor


WITH_EVERYTHING = PolicyLoss(
    kl_loss_coef=0.3, entropy_loss_coef=0.1, rl_loss_coef=0.7, objective=ClippedRatio(dual_clip=1.1)
)
OBJECTIVES: dict[str, Objective] = {
    "vanilla": PolicyGradient(),
    "opmd": PolicyGradient(0.6),
    "tis": BoundedWeight(0.2, 1.1),
    "cispo": BoundedWeight(0.9, 1.15),
    "cispo, settled dropped": BoundedWeight(0.9, 1.15, drops_settled=True),
    "topr": TaperedWeight(0.8, 1.3),
    "kimi15": SquaredPenalty(0.6),
    "sapo": SoftGate(0.7, 1.6),
    "gmpo": ClippedGeometricMean(0.2, 0.05),
    "rec, no clip": RatioGate("none", weight="importance_sampling"),
    "rec": RatioGate("one-side", 0.1, 0.15),
    "rec, weighed": RatioGate("one-side", 0.1, 0.15, weight="importance_sampling"),
    "rec, by advantage": RatioGate("two-side", 0.1, 0.15, weight="advantage", weight_temp=0.7),
    "rec, forward KL": RatioGate("one-side", 0.1, 0.15, regularizer="forward-kl", regularizer_coef=0.2),
    "rec, k2": RatioGate("ring", 0.1, 0.1, 0.2, 0.25, regularizer="k2", regularizer_coef=0.3),
    "rec, two sides": RatioGate("two-side", 0.1, 0.15),
    "rec, ring": RatioGate("ring", 0.1, 0.1, 0.2, 0.25),
    "sppo": ClippedLogRatio(0.2),
    "dppo": DivergenceGate("tv", 0.01, 0.02, 1.2),
    "dppo, KL": DivergenceGate("kl", 5e-4, 1e-3, 1.2),
    "cppo": PrefixBudget(0.04, 0.5, 0.004, 0.7, 0.5, 1.2),
    "cppo, budget never spent": PrefixBudget(0.02, 0.8, 1.0, 0.9, 1.0, 1.2),
}
KINDS: tuple[Literal["seq", "segment", "product"], ...] = ("seq", "segment", "product")
CASES: dict[str, PolicyLoss] = {
    **{f"mode {m}": replace(WITH_EVERYTHING, aggregation=Aggregation(m, MAX_LENGTH)) for m in MODES},
    "clip higher": PolicyLoss(ClippedRatio(0.1, 0.35)),
    "dual clip 3": PolicyLoss(ClippedRatio(dual_clip=3.0)),
    "sequence ratio": PolicyLoss(ClippedRatio(0.05, 0.02), importance_sampling="seq"),
    "sequence ratio, token mean": PolicyLoss(importance_sampling="seq", aggregation=Aggregation("token-mean")),
    "ratio per turn": PolicyLoss(ClippedRatio(0.05, 0.02), importance_sampling="segment"),
    **{name: replace(WITH_EVERYTHING, objective=objective) for name, objective in OBJECTIVES.items()},
    **{
        f"{name} per {kind}": PolicyLoss(objective, importance_sampling=kind)
        for name, objective in OBJECTIVES.items()
        for kind in KINDS
        if not isinstance(objective, DivergenceGate | PrefixBudget)  # which a ratio of several tokens is refused with
    },
    **{f"KL {k}": PolicyLoss(kl_loss_coef=0.5, kl_loss_estimator=k) for k in ("k1", "k2", "k3", "abs")},
    **{
        f"weight {g}": PolicyLoss(correction=TrainInferCorrection(ImportanceWeight(g, upper_bound=1.1)))
        for g in GRANULARITIES
    },
    "weight without bound": PolicyLoss(correction=TrainInferCorrection(ImportanceWeight("token", None))),
    **{
        f"filter {g} by both": PolicyLoss(
            correction=TrainInferCorrection(filters=(MismatchFilter(g, True, 0.9, 1.1, True, -0.1, 0.1),))
        )
        for g in GRANULARITIES
    },
    **{
        f"filter {g}": PolicyLoss(
            correction=TrainInferCorrection(
                filters=(
                    MismatchFilter(g, ratio_low=0.9, ratio_high=1.1),
                    MismatchFilter(g, False, diff_enabled=True, diff_low=-0.1),
                )
            )
        )
        for g in GRANULARITIES
    },
}


@pytest.mark.parametrize("old", [True, False], ids=["old log-probs", "own log-probs"])
@pytest.mark.parametrize("name", CASES)
def test_policy_loss_and_gradient_equal_the_loop(name: str, old: bool) -> None:
    loss = CASES[name]
    rng = np.random.default_rng(7)
    batch = random_train_batch(rng, random_samples(rng, [4, 1, 0, 7, 9, 3], turns=2), old)
    theta = torch.from_numpy(near(rng, batch.samples, 0.3).astype(np.float64)).requires_grad_()
    entropy = torch.from_numpy(rng.uniform(0, 2, batch.samples.num_tokens)).requires_grad_()
    expected = slow_policy_loss(loss, batch, theta, entropy)
    expected_gradients = torch.autograd.grad(expected, [theta, entropy], allow_unused=True)

    parts = [np.array([0, 3]), np.array([2, 1, 5, 4])]
    value, metrics = apply_loss(loss, batch, {"log_probs": theta, "entropy": entropy}, parts)

    assert value == pytest.approx(expected.item(), rel=RTOL, abs=1e-8)  # its terms may cancel
    assert theta.grad is not None
    torch.testing.assert_close(theta.grad, expected_gradients[0], rtol=RTOL, atol=1e-9)
    if loss.entropy_loss_coef:
        torch.testing.assert_close(entropy.grad, expected_gradients[1], rtol=RTOL, atol=1e-9)
    else:
        assert entropy.grad is None
    whole = metrics.result()
    combined = loss.rl_loss_coef * (whole["pg_loss"] + loss.kl_loss_coef * whole["kl_loss"])
    if not loss.entropy_loss_coef:
        assert combined == pytest.approx(value, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs"])
def test_kl_estimates_and_gradients_equal_the_loop_however_far_apart_the_policies_are(estimator: KLEstimator) -> None:
    """Of the loop in float64, beyond the point where k3 goes on as its tangent too. Not covered: float32."""
    gaps = torch.tensor([-300.0, -40, -20.001, -19.999, -15, -1, -1e-3, 0, 0.5, 15, 300], dtype=torch.float64)
    reference = torch.full_like(gaps, -2.0)
    theta = (reference + gaps).requires_grad_()
    expected = torch.stack([slow_kl(estimator, value - ref) for value, ref in zip(theta, reference, strict=True)])
    (gradients,) = torch.autograd.grad(expected.sum(), [theta])
    estimates = estimate_kl(theta, reference, estimator)
    torch.testing.assert_close(estimates, expected, rtol=1e-12, atol=1e-12)
    (own,) = torch.autograd.grad(estimates.sum(), [theta])
    at = gaps != 0  # there abs has no slope of its own
    torch.testing.assert_close(own[at], gradients[at], rtol=1e-12, atol=1e-12)


def test_the_penalty_of_a_product_is_that_of_the_papers_loss_of_whole_answers() -> None:
    """Kimi k1.5, equation 3: the mean over answers of -A log p(y) + tau / 2 (log p(y) / p_old(y))^2."""
    rng = np.random.default_rng(5)
    batch = random_train_batch(rng, random_samples(rng, [4, 1, 7]))
    batch = replace(batch, advantages=np.ones_like(batch.advantages) * batch.samples.response_mask)
    batch = replace(batch, samples=replace(batch.samples, loss_weights=np.ones(3, np.float32)))
    assert batch.old_log_probs is not None
    old = torch.from_numpy(batch.old_log_probs.astype(np.float64))
    theta = torch.from_numpy(near(rng, batch.samples, 0.3).astype(np.float64)).requires_grad_()
    answers = [-theta[row].sum() + 0.3 * (theta[row].sum() - old[row].sum()) ** 2 for row in response_tokens(batch)]
    expected = torch.stack(answers).mean()
    (gradient,) = torch.autograd.grad(expected, [theta])
    loss = PolicyLoss(SquaredPenalty(0.6), "product", Aggregation("seq-mean-token-sum"))
    value, _ = apply_loss(loss, batch, {"log_probs": theta}, [np.array([2, 0]), np.array([1])])
    assert value == pytest.approx(expected.item(), rel=RTOL)
    torch.testing.assert_close(theta.grad, gradient, rtol=RTOL, atol=1e-9)


@pytest.mark.parametrize(("probs", "learns"), [([0.8, 0.8, 0.8, 0.55], [1, 0, 0, 0]), ([0.5, 0.5, 0.5, 0.55], [1] * 4)])
def test_a_row_whose_first_tokens_have_used_up_the_budget_leaves_none_to_its_last(
    probs: list[float], learns: list[int]
) -> None:
    """The example of PrefixBudget. The same row beside a longer one: padding has no say."""
    for more in (0, 3):
        log_probs = torch.zeros(2, 4 + more, dtype=torch.float64)
        log_probs[0, :4] = torch.tensor(probs, dtype=torch.float64).log()
        log_probs.requires_grad_()
        mask = torch.zeros(2, 4 + more, dtype=torch.bool)
        mask[0, :4] = True
        tokens = PolicyTokens(log_probs, (log_probs - math.log(0.5)) * mask, mask.double(), mask)
        loss = PrefixBudget(0.5, 1.0, 0.001, 0.9, 0.0, 1e9)(tokens, MetricSums())
        (gradient,) = torch.autograd.grad(loss.sum(), [log_probs])
        want = [-p / 0.5 * learn for p, learn in zip(probs, learns, strict=True)]
        assert gradient[0, :4].tolist() == pytest.approx(want) and not gradient[:, 4:].any() and not gradient[1].any()


def test_the_only_token_of_a_row_weighs_as_a_first_one() -> None:
    """It moved by .165, more than .15: it would learn with the weight .8 of a last token."""
    log_probs = torch.tensor([[math.log(0.665)]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    tokens = PolicyTokens(log_probs, log_probs.detach() - math.log(0.5), mask.double(), mask)
    loss = PrefixBudget(0.15, 0.8, 0.02, 0.9, 1.0, 20.0)(tokens, MetricSums())
    assert torch.autograd.grad(loss.sum(), [log_probs])[0].item() == 0.0


def test_policy_metrics_equal_the_loop() -> None:
    rng = np.random.default_rng(3)
    batch = random_train_batch(rng, random_samples(rng, [5, 2, 8]))
    theta = torch.from_numpy(near(rng, batch.samples, 0.4).astype(np.float64)).requires_grad_()
    entropy = torch.from_numpy(rng.uniform(0, 2, batch.samples.num_tokens))
    loss = PolicyLoss(ClippedRatio(0.1, 0.3, dual_clip=1.2), report_entropy=True)
    metrics = apply_loss(loss, batch, {"log_probs": theta, "entropy": entropy}, [np.array([0]), np.array([2, 1])])[
        1
    ].result()

    mask = batch.samples.response_mask
    assert batch.old_log_probs is not None
    d = (theta.detach().numpy() - batch.old_log_probs)[mask]
    ratio, advantage = np.exp(d), batch.advantages[mask]
    low, high = (advantage < 0) & (ratio < 0.9), (advantage > 0) & (ratio > 1.3)
    gap = np.abs(batch.old_log_probs - batch.samples.rollout_log_probs)[mask]
    assert metrics["clip_low_fraction"] == pytest.approx(low.mean())
    assert metrics["clip_high_fraction"] == pytest.approx(high.mean())
    assert metrics["clip_fraction"] == pytest.approx((low | high).mean())
    assert metrics["dual_clip_fraction"] == pytest.approx(((advantage < 0) & (ratio > 1.2)).mean())
    assert metrics["approx_kl"] == pytest.approx((ratio - 1 - d).mean(), rel=1e-5)
    assert metrics["ratio_mean"] == pytest.approx(ratio.mean(), rel=1e-6)
    assert metrics["ratio_max"] == pytest.approx(ratio.max(), rel=1e-6)
    assert metrics["entropy_mean"] == pytest.approx(entropy.numpy()[mask].mean(), rel=1e-6)
    assert metrics["train_infer_log_prob_diff_mean"] == pytest.approx(gap.mean(), rel=1e-5)
    assert metrics["train_infer_log_prob_diff_max"] == pytest.approx(gap.max(), rel=1e-5)


@pytest.mark.parametrize("old", [True, False], ids=["old log-probs", "own log-probs"])
def test_weighted_tokens_of_all_ages_have_the_gradient_of_the_loop_and_the_gap_is_told_by_age(old: bool) -> None:
    """The age changes no gradient, only what is told: of tokens of lag 0 the gap, of the others the drift."""
    rng = np.random.default_rng(13)
    batch = random_train_batch(rng, random_samples(rng, [4, 0, 7, 9], turns=2), old)
    mask = batch.samples.response_mask
    batch = replace(batch, lag=np.where(mask, rng.integers(0, 3, len(mask)), 0))
    theta = torch.from_numpy(near(rng, batch.samples, 0.4).astype(np.float64)).requires_grad_()
    loss = PolicyLoss(correction=TrainInferCorrection(ImportanceWeight("token", 1.2)), max_lag=3)
    entropy = torch.zeros_like(theta)
    (gradient,) = torch.autograd.grad(slow_policy_loss(loss, batch, theta, entropy), [theta])
    parts = [np.array([0, 2]), np.array([3, 1])]
    metrics = apply_loss(loss, batch, {"log_probs": theta}, parts)[1].result()
    torch.testing.assert_close(theta.grad, gradient, rtol=RTOL, atol=1e-9)

    trained_on = theta.detach().numpy() if batch.old_log_probs is None else batch.old_log_probs
    gap = np.abs(trained_on - batch.samples.rollout_log_probs)
    assert batch.lag is not None
    of_age = [gap[mask & (batch.lag == lag)] for lag in range(3)]
    told = "train_infer_log_prob_diff_mean"
    assert metrics[told] == pytest.approx(of_age[0].mean(), rel=1e-5)
    assert metrics["train_infer_log_prob_diff_max"] == pytest.approx(of_age[0].max(), rel=1e-5)
    assert [metrics[f"{told}/lag_{lag}"] for lag in (1, 2)] == pytest.approx([g.mean() for g in of_age[1:]], rel=1e-5)
    assert f"{told}/lag_3" not in metrics


def test_without_a_token_of_the_present_weights_no_gap_to_the_engine_is_told() -> None:
    rng = np.random.default_rng(3)
    batch = random_train_batch(rng, random_samples(rng, [5, 2]))
    batch = replace(batch, lag=batch.samples.response_mask.astype(np.int64))
    theta = torch.from_numpy(near(rng, batch.samples, 0.4)).requires_grad_()
    metrics = apply_loss(PolicyLoss(max_lag=1), batch, {"log_probs": theta}, [np.arange(2)])[1].result()
    assert "train_infer_log_prob_diff_mean" not in metrics
    assert metrics["train_infer_log_prob_diff_max"] == 0 and metrics["train_infer_log_prob_diff_mean/lag_1"] > 0


def test_the_length_over_the_rows_of_a_micro_batch_is_the_scale_of_those_who_do_not_divide_by_rows() -> None:
    """ROLL and verl: in each micro batch the sum over its tokens / L, and the mean over micro batches."""
    rng = np.random.default_rng(4)
    batch = random_train_batch(rng, random_samples(rng, [3, 1, 8, 5]))
    theta = torch.from_numpy(near(rng, batch.samples, 0.3).astype(np.float64)).requires_grad_()
    rows, weights, length = response_tokens(batch), batch.samples.loss_weights, 12
    parts = [[0, 2], [3, 1]]
    theirs = torch.zeros((), dtype=torch.float64)
    for part in parts:
        sums = [-float(batch.advantages[t]) * theta[t] * float(weights[row]) for row in part for t in rows[row]]
        theirs = theirs + torch.stack(sums).sum() / length / len(parts)
    (gradient,) = torch.autograd.grad(theirs, [theta])
    loss = PolicyLoss(PolicyGradient(), aggregation=Aggregation("seq-mean-token-sum-norm", length / len(parts[0])))
    value, _ = apply_loss(loss, batch, {"log_probs": theta}, [np.array(part) for part in parts])
    assert value == pytest.approx(theirs.item(), rel=RTOL)
    torch.testing.assert_close(theta.grad, gradient, rtol=RTOL, atol=1e-9)


@pytest.mark.parametrize("value_clip", [None, 0.2])
def test_value_loss_and_gradient_equal_the_loop(value_clip: float | None) -> None:
    rng = np.random.default_rng(11)
    batch = random_train_batch(rng, random_samples(rng, [4, 1, 0, 7]))
    theta = torch.from_numpy(rng.normal(size=batch.samples.num_tokens)).requires_grad_()
    assert batch.values is not None
    assert batch.returns is not None
    terms = []
    for t in np.flatnonzero(batch.samples.response_mask):
        target, before = float(batch.returns[t]), float(batch.values[t])
        options = [(theta[t] - target) ** 2]
        if value_clip is not None:
            inside = abs(theta[t].item() - before) <= value_clip
            kept = (
                theta[t]
                if inside
                else torch.tensor(before + math.copysign(value_clip, theta[t].item() - before)).double()
            )
            options.append((kept - target) ** 2)
        terms.append(max(options, key=lambda x: x.item()) / 2)
    expected = torch.stack(terms).mean()
    (gradient,) = torch.autograd.grad(expected, [theta])

    value, metrics = apply_loss(ValueLoss(value_clip), batch, {"values": theta}, [np.array([1, 3]), np.array([0, 2])])
    assert value == pytest.approx(expected.item(), rel=1e-6)
    assert theta.grad is not None
    torch.testing.assert_close(theta.grad, gradient, rtol=RTOL, atol=1e-9)

    result, mask = metrics.result(), batch.samples.response_mask
    returns, values = batch.returns[mask], theta.detach().numpy()[mask]
    assert result["value_loss"] == pytest.approx(expected.item(), rel=1e-6)
    assert result["value_mean"] == pytest.approx(values.mean(), rel=1e-6)
    assert explained_variance(result) == pytest.approx(1 - np.var(returns - values) / np.var(returns), rel=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_supervised_loss_and_gradient_equal_the_loop(mode: LossAggMode) -> None:
    rng = np.random.default_rng(5)
    batch = random_train_batch(rng, random_samples(rng, [3, 6, 0]))
    theta = torch.from_numpy(rng.normal(size=batch.samples.num_tokens)).requires_grad_()
    rows = [[-theta[t] for t in row] for row in response_tokens(batch)]
    expected = aggregated(rows, batch.samples.loss_weights.tolist(), mode)
    (gradient,) = torch.autograd.grad(expected, [theta])

    loss = SupervisedLoss(Aggregation(mode, MAX_LENGTH))
    value, _ = apply_loss(loss, batch, {"log_probs": theta}, [np.arange(3)], scale=full_scale(batch.samples))
    assert value == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(theta.grad, gradient, rtol=RTOL, atol=1e-9)
