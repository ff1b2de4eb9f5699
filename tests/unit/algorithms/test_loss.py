from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.algorithms.loss import Aggregation, Loss, SupervisedLoss
from roll.algorithms.objectives import (
    BoundedWeight,
    ClippedRatio,
    Objective,
    PolicyGradient,
    SquaredPenalty,
    TaperedWeight,
)
from roll.algorithms.off_policy import ImportanceWeight, MismatchFilter, TrainInferCorrection
from roll.algorithms.policy_loss import PolicyLoss, ValueLoss, explained_variance
from roll.types.batch import LossScale, SampleBatch, TokenOutputs, TrainBatch
from roll.types.collate import pad, padding_rows
from roll.types.columns import columns
from tests.unit.algorithms.rows import apply_loss, full_scale, near, random_samples, random_train_batch

CORRECTION = TrainInferCorrection(
    ImportanceWeight("segment", 1.1), (MismatchFilter("token", ratio_low=0.6, ratio_high=1.6),)
)
LOSSES: dict[str, Loss] = {
    "token-mean": PolicyLoss(aggregation=Aggregation("token-mean"), kl_loss_coef=0.2, entropy_loss_coef=0.1),
    "seq-mean-token-mean": PolicyLoss(importance_sampling="seq", correction=CORRECTION),
    "seq-mean-token-sum": PolicyLoss(
        ClippedRatio(dual_clip=3.0), aggregation=Aggregation("seq-mean-token-sum"), kl_loss_coef=0.2
    ),
    "seq-mean-token-sum-norm": PolicyLoss(aggregation=Aggregation("seq-mean-token-sum-norm", 16), report_entropy=True),
    "policy gradient": PolicyLoss(PolicyGradient()),
    "bounded weight": PolicyLoss(BoundedWeight(0.9, 1.1, drops_settled=True), importance_sampling="segment"),
    "tapered weight": PolicyLoss(TaperedWeight(0.8, 1.2), importance_sampling="seq"),
    "squared penalty": PolicyLoss(SquaredPenalty(), importance_sampling="seq"),
    "value": ValueLoss(0.2),
    "supervised": SupervisedLoss(),
}


def random_outputs(rng: np.random.Generator, samples: SampleBatch) -> dict[str, torch.Tensor]:
    flat = {
        "log_probs": near(rng, samples, 0.2).astype(np.float64),
        "entropy": rng.uniform(0, 2, samples.num_tokens),
        "values": rng.normal(size=samples.num_tokens),
    }
    return {name: torch.from_numpy(values).requires_grad_() for name, values in flat.items()}


def fresh(flat: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: values.detach().clone().requires_grad_() for name, values in flat.items()}


def gradient(values: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(values) if values.grad is None else values.grad


def with_padding_rows(batch: TrainBatch, count: int) -> TrainBatch:
    """`count` rows more, with nothing to train on but garbage in every column."""
    extra = padding_rows(batch.samples, count)
    garbage = np.full(extra.num_tokens, 7.0, np.float32)
    extended = {}
    for name in columns(TrainBatch):
        values = getattr(batch, name)
        extended[name] = None if values is None else np.concatenate([values, garbage])
    return TrainBatch(samples=SampleBatch.concatenate([batch.samples, extra]), **extended)


@settings(max_examples=12)
@given(data=st.data())
@pytest.mark.parametrize("name", LOSSES)
def test_split_padding_rows_and_width_change_nothing(name: str, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=2, max_size=6).filter(any), label="response lengths")
    num_extra = data.draw(st.integers(0, 3), label="padding rows")
    cuts = data.draw(st.lists(st.integers(1, len(lengths) + num_extra - 1), unique=True), label="cuts")
    order = data.draw(st.permutations(range(len(lengths) + num_extra)), label="order")
    rng = np.random.default_rng(data.draw(st.integers(0, 99), label="seed"))
    batch = random_train_batch(rng, random_samples(rng, lengths, turns=2), old=data.draw(st.booleans(), label="old"))
    flat = random_outputs(rng, batch.samples)
    value, metrics = apply_loss(LOSSES[name], batch, flat, [np.arange(len(lengths))])

    larger = with_padding_rows(batch, num_extra)
    more = {k: torch.cat([v.detach(), torch.ones(larger.samples.num_tokens - len(v))]) for k, v in flat.items()}
    more = fresh(more)
    parts = np.split(np.array(order), sorted(cuts))
    scale = full_scale(batch.samples)
    other_value, other_metrics = apply_loss(LOSSES[name], larger, more, parts, 4, scale, outside=1e3)

    assert other_value == pytest.approx(value, rel=1e-9, abs=1e-12)
    for output, values in flat.items():
        here, there = gradient(values), gradient(more[output])
        torch.testing.assert_close(there[: len(here)], here, rtol=1e-9, atol=1e-12)
        untrained = torch.from_numpy(~larger.samples.response_mask)
        assert torch.equal(there[untrained], torch.zeros(int(untrained.sum()), dtype=torch.float64))
    result, other_result = metrics.result(), other_metrics.result()
    assert other_result.keys() == result.keys()
    for key, number in result.items():
        assert other_result[key] == pytest.approx(number, rel=1e-5, abs=1e-7), key


@pytest.mark.parametrize("name", LOSSES)
def test_fully_masked_micro_batch_gives_exactly_zero_and_a_zero_gradient(name: str) -> None:
    rng = np.random.default_rng(0)
    samples = random_samples(rng, [3, 5])
    samples = replace(samples, response_mask=np.zeros(samples.num_tokens, bool))
    batch = random_train_batch(rng, samples)
    flat = random_outputs(rng, samples)
    for scale in (LossScale(100, 10), LossScale(0, 0)):
        value, metrics = apply_loss(LOSSES[name], batch, flat, [np.arange(2)], scale=scale, outside=float("nan"))
        assert value == 0.0
        assert any(values.grad is not None for values in flat.values())
        for values in flat.values():
            assert torch.equal(gradient(values), torch.zeros_like(values))
        assert metrics.to_floats().result().keys() <= {"ratio_max", "train_infer_log_prob_diff_max"}
        assert all(np.isfinite(total) for total, _ in metrics.to_floats().means.values())


@pytest.mark.parametrize("name", LOSSES)
def test_metrics_stay_on_the_device_and_hold_no_graph(name: str) -> None:
    rng = np.random.default_rng(0)
    batch = random_train_batch(rng, random_samples(rng, [3, 5]))
    _, metrics = apply_loss(LOSSES[name], batch, random_outputs(rng, batch.samples), [np.arange(2)])
    numbers = [n for pair in metrics.means.values() for n in pair] + list(metrics.maxima.values())
    for number in numbers:
        assert isinstance(number, torch.Tensor)
        assert number.dim() == 0
        assert not number.requires_grad


@pytest.mark.parametrize("name", LOSSES)
def test_losses_survive_pickling(name: str) -> None:
    assert pickle.loads(pickle.dumps(LOSSES[name])) == LOSSES[name]


def one_token(log_prob: float, advantage: float, old: float) -> tuple[TokenOutputs, TrainBatch, torch.Tensor]:
    """A row of one prompt and one response token."""
    rng = np.random.default_rng(0)
    samples = replace(random_samples(rng, [1]), loss_weights=np.ones(1, np.float32))
    samples = samples.select(np.array([0]))
    at = int(np.flatnonzero(samples.response_mask)[0])
    column = np.zeros(samples.num_tokens, np.float32)
    advantages, olds = column.copy(), column.copy()
    advantages[at], olds[at] = advantage, old
    log_probs = torch.zeros(1, samples.num_tokens)
    log_probs[0, at] = log_prob
    log_probs.requires_grad_()
    return TokenOutputs(log_probs=log_probs), TrainBatch(samples, advantages, olds), log_probs


@pytest.mark.parametrize(
    "objective", [ClippedRatio(None, None), BoundedWeight(0.0, 2.0), TaperedWeight(), SquaredPenalty()]
)
def test_extreme_log_ratio_stays_finite(objective: Objective) -> None:
    for log_prob, old in ((-1.0, -500.0), (-500.0, -1.0)):
        for advantage in (1.0, -1.0, 0.0):
            outputs, batch, log_probs = one_token(log_prob, advantage, old)
            batch = replace(batch, ref_log_probs=batch.old_log_probs)
            loss = PolicyLoss(
                objective, kl_loss_coef=0.1, correction=TrainInferCorrection(ImportanceWeight("sequence"))
            )
            value, metrics = loss(outputs, pad(batch, np.array([0])), LossScale(1, 1))
            value.backward()
            assert torch.isfinite(value)
            assert log_probs.grad is not None
            assert torch.isfinite(log_probs.grad).all()
            assert all(np.isfinite(v) for v in metrics.result().values())


def test_settings_name_what_they_need() -> None:
    assert PolicyLoss().needs == {"log_probs"}
    assert PolicyLoss(entropy_loss_coef=0.1).needs == {"log_probs", "entropy"}
    assert PolicyLoss(report_entropy=True).needs == {"log_probs", "entropy"}
    assert ValueLoss().needs == {"values"}
    assert SupervisedLoss().needs == {"log_probs"}


def test_kl_is_reported_without_a_coefficient_and_then_has_no_gradient() -> None:
    rng = np.random.default_rng(1)
    batch = random_train_batch(rng, random_samples(rng, [3, 5]))
    without, with_reference = random_outputs(rng, batch.samples), None
    with_reference = fresh(without)
    value, metrics = apply_loss(PolicyLoss(), batch, with_reference, [np.arange(2)])
    plain, plain_metrics = apply_loss(PolicyLoss(), replace(batch, ref_log_probs=None), without, [np.arange(2)])
    assert value == plain
    assert torch.equal(gradient(with_reference["log_probs"]), gradient(without["log_probs"]))
    assert metrics.result()["kl_loss"] > 0
    assert "kl_loss" not in plain_metrics.means


def test_what_is_missing_is_named() -> None:
    rng = np.random.default_rng(1)
    batch = random_train_batch(rng, random_samples(rng, [3]))
    micro, scale = pad(batch, np.array([0])), full_scale(batch.samples)
    log_probs = TokenOutputs(log_probs=micro.rollout_log_probs)
    for loss, outputs, rows, message in (
        (PolicyLoss(), TokenOutputs(), micro, "PolicyLoss needs log_probs"),
        (PolicyLoss(), log_probs, replace(micro, advantages=None), "needs advantages"),
        (PolicyLoss(kl_loss_coef=0.1), log_probs, replace(micro, ref_log_probs=None), "needs ref_log_probs"),
        (PolicyLoss(entropy_loss_coef=0.1), log_probs, micro, "needs entropy"),
        (ValueLoss(), log_probs, micro, "ValueLoss needs values"),
        (
            ValueLoss(0.2),
            TokenOutputs(values=micro.advantages),
            replace(micro, values=None),
            "values before the update",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            loss(outputs, rows, scale)


@pytest.mark.parametrize("returns_scale", [1.0, 0.05, 0.004])
def test_a_value_that_moved_less_than_the_clip_does_not_count_as_clipped(returns_scale: float) -> None:
    """In float32, where before + (v - before) is seldom v. The loss is then that without a clip, bit for bit."""
    rng = np.random.default_rng(5)
    samples = random_samples(rng, [5000])
    before, returns = (returns_scale * rng.normal(size=(2, samples.num_tokens))).astype(np.float32)
    batch = replace(random_train_batch(rng, samples), values=before, returns=returns)
    now = (returns_scale * rng.normal(size=samples.num_tokens)).astype(np.float32)
    moved = torch.from_numpy(np.where(np.abs(now - before) < 0.199, now, before)).requires_grad_()
    plain, _ = apply_loss(ValueLoss(), batch, {"values": moved}, [np.array([0])])
    value, metrics = apply_loss(ValueLoss(0.2), batch, {"values": moved}, [np.array([0])])
    assert metrics.result()["value_clip_fraction"] == 0
    assert value == plain


def test_explained_variance_of_perfect_mean_only_and_constant_critics() -> None:
    moments = {"return_mean": 1.0, "return_square_mean": 3.0}
    assert explained_variance({**moments, "value_error_mean": 0.0, "value_error_square_mean": 0.0}) == 1.0
    assert explained_variance({**moments, "value_error_mean": 0.0, "value_error_square_mean": 2.0}) == 0.0
    constant = {"return_mean": 1.0, "return_square_mean": 1.0, "value_error_mean": 0.0, "value_error_square_mean": 0.0}
    assert explained_variance(constant) is None
    assert explained_variance({}) is None


def test_the_gap_to_the_engine_shows_where_its_log_probs_are_the_old_ones() -> None:
    rng = np.random.default_rng(2)
    batch = random_train_batch(rng, random_samples(rng, [3, 5]))
    batch = replace(batch, old_log_probs=batch.samples.rollout_log_probs)
    flat = random_outputs(rng, batch.samples)
    _, blind = apply_loss(PolicyLoss(), batch, fresh(flat), [np.arange(2)])
    _, seeing = apply_loss(PolicyLoss(old_is_rollout=True), batch, fresh(flat), [np.arange(2)])
    mask = batch.samples.response_mask
    gap = np.abs(flat["log_probs"].detach().numpy() - batch.samples.rollout_log_probs)[mask]
    assert blind.result()["train_infer_log_prob_diff_max"] == 0
    assert seeing.result()["train_infer_log_prob_diff_mean"] == pytest.approx(gap.mean(), rel=1e-5)
