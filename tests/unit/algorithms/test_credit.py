from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from roll.algorithms.credit import (
    CreditSettings,
    assign_credit,
    broadcast_returns,
    generalized_advantages,
    reward_to_go,
)
from roll.types.batch import TokenScores
from tests.unit.algorithms.rows import alone, near, random_samples


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_examples_of_the_docstrings() -> None:
    one_row = np.array([2])
    assert broadcast_returns(np.array([1, 2]), np.array([3, 1]), 0.5).tolist() == [0.25, 0.5, 1, 2]
    assert broadcast_returns(np.array([1, 2]), np.array([3, 1]), 1.0).tolist() == [1, 1, 1, 2]
    assert reward_to_go(np.array([1.0, 2, 4]), np.array([3]), 0.5).tolist() == [3, 4, 4]
    rewards, values = np.array([0.0, 1.0]), np.array([0.5, 0.5])
    assert generalized_advantages(rewards, values, one_row, 1.0, 1.0).tolist() == [0.5, 0.5]
    assert generalized_advantages(rewards, values, one_row, 1.0, 0.0).tolist() == [0.0, 0.5]


def test_row_value_reaches_every_response_token_exactly_and_no_other() -> None:
    rng = np.random.default_rng(0)
    samples = random_samples(rng, [3, 0, 5], turns=2)
    batch, metrics = assign_credit(samples, TokenScores(), floats(0.1, 9, -0.7), CreditSettings(), alone)
    expected = np.repeat(floats(0.1, 9, -0.7), samples.lengths) * samples.response_mask
    assert np.array_equal(batch.advantages, expected)
    assert batch.samples is samples
    assert metrics.result() == pytest.approx(
        {"advantage_mean": (0.3 - 3.5) / 8, "advantage_abs_mean": 3.8 / 8, "advantage_max": 0.1}, rel=1e-6
    )


def test_tokens_know_how_old_they_are_and_too_old_ones_are_not_trained_on() -> None:
    """Three rows of which the first tokens are of version 3, the others of 5 and 7; version 8 learns."""
    rng = np.random.default_rng(0)
    samples = random_samples(rng, [4, 6, 3])
    sampled = samples.response_mask
    versions = np.where(sampled, np.array([3, 5, 7])[np.arange(len(sampled)) % 3], -1).astype(np.int32)
    samples = replace(samples, policy_versions=versions)
    values = floats(1, 2, -1)
    young, _ = assign_credit(samples, TokenScores(), values, CreditSettings(), alone)
    assert young.lag is None

    every, _ = assign_credit(samples, TokenScores(), values, CreditSettings(version=8), alone)
    assert every.lag is not None
    assert np.array_equal(every.lag, np.where(sampled, 8 - versions, 0))
    assert np.array_equal(every.advantages, young.advantages) and every.samples is samples

    kept, metrics = assign_credit(samples, TokenScores(), values, CreditSettings(version=8, max_lag=3), alone)
    is_old = sampled & (versions == 3)
    assert 0 < is_old.sum() < sampled.sum()
    assert np.array_equal(kept.samples.response_mask, sampled & ~is_old)
    assert kept.lag is not None and kept.lag.max() == 3
    assert np.array_equal(kept.advantages, np.where(is_old, 0, young.advantages))
    assert metrics.result()["masked_stale_fraction"] == is_old.sum() / sampled.sum()


def test_rows_of_weight_zero_lose_their_mask_and_do_not_enter_the_whitening() -> None:
    rng = np.random.default_rng(0)
    samples = random_samples(rng, [3, 4, 5])
    settings = CreditSettings("reinforce", whiten_advantages=True)
    values, weights = floats(1, 50, -1), floats(2, 0, 0.5)
    batch, _ = assign_credit(samples, TokenScores(), values, settings, alone, weights)
    kept = samples.select(np.array([0, 2]))
    alone_batch, _ = assign_credit(kept, TokenScores(), values[[0, 2]], settings, alone)
    dropped = np.repeat([False, True, False], samples.lengths)
    assert not batch.samples.response_mask[dropped].any()
    assert np.array_equal(batch.advantages[dropped], np.zeros(dropped.sum()))
    assert np.array_equal(batch.advantages[~dropped], alone_batch.advantages)
    assert np.array_equal(batch.samples.loss_weights, samples.loss_weights * weights)


def test_two_turns_are_one_sequence_of_response_tokens() -> None:
    """What the environment wrote in between neither discounts nor enters the values."""
    rng = np.random.default_rng(0)
    split, joined = random_samples(rng, [6], turns=3), random_samples(rng, [6])
    values = rng.normal(size=6).astype(np.float32)
    results = []
    for samples in (split, joined):
        column = np.full(samples.num_tokens, 9, np.float32)
        column[samples.response_mask] = values
        settings = CreditSettings("gae", gamma=0.9, lambd=0.8)
        batch, _ = assign_credit(samples, TokenScores(values=column), floats(2), settings, alone)
        results.append(batch.advantages[samples.response_mask])
    assert np.array_equal(results[0], results[1])


def test_kl_metric_is_the_mean_over_rows_of_their_token_means() -> None:
    rng = np.random.default_rng(0)
    samples = random_samples(rng, [1, 0, 4])
    old, ref = near(rng, samples, 0.1), near(rng, samples, 0.5)
    scores = TokenScores(old_log_probs=old, ref_log_probs=ref)
    _, metrics = assign_credit(samples, scores, np.zeros(3, np.float32), CreditSettings(kl_penalty="k1"), alone)
    difference = (old - ref)[samples.response_mask]
    assert metrics.result()["kl_mean"] == pytest.approx((difference[0] + difference[1:].mean()) / 2, rel=1e-5)


def test_kl_without_a_place_in_the_reward_changes_no_advantage() -> None:
    rng = np.random.default_rng(0)
    samples = random_samples(rng, [2, 4])
    scores = TokenScores(old_log_probs=near(rng, samples, 0.1), ref_log_probs=near(rng, samples, 0.5))
    with_kl, _ = assign_credit(samples, scores, floats(1, 2), CreditSettings(kl_coef=5.0), alone)
    without, _ = assign_credit(samples, TokenScores(), floats(1, 2), CreditSettings(), alone)
    assert np.array_equal(with_kl.advantages, without.advantages)


def test_clips_are_applied_and_counted() -> None:
    rng = np.random.default_rng(0)
    samples = random_samples(rng, [2, 2])
    settings = CreditSettings("reinforce", reward_clip=4.0, advantage_clip=3.0)
    batch, metrics = assign_credit(samples, TokenScores(), floats(5, 1), settings, alone)
    assert batch.advantages[samples.response_mask].tolist() == [3, 3, 1, 1]
    assert metrics.result()["token_reward_clip_fraction"] == 0.25
    assert metrics.result()["advantage_clip_fraction"] == 0.5


@pytest.mark.parametrize("estimator", ["grpo", "gae", "reinforce_plus_plus"])
def test_batch_without_a_response_token_gives_zeros_and_no_metrics(estimator: str) -> None:
    rng = np.random.default_rng(0)
    samples = random_samples(rng, [0, 0])
    column = np.zeros(samples.num_tokens, np.float32)
    scores = TokenScores(old_log_probs=column, ref_log_probs=column, values=column)
    settings = CreditSettings(estimator, add_token_level_kl=True, whiten_rewards=True)  # pyright: ignore[reportArgumentType]
    batch, metrics = assign_credit(samples, scores, np.zeros(2, np.float32), settings, alone)
    assert np.array_equal(batch.advantages, column)
    assert metrics.result() == {}


def test_what_is_missing_or_wrong_is_named() -> None:
    rng = np.random.default_rng(0)
    samples, values = random_samples(rng, [2]), np.zeros(1, np.float32)
    with pytest.raises(ValueError, match="critic's values"):
        assign_credit(samples, TokenScores(), values, CreditSettings("gae"), alone)
    with pytest.raises(ValueError, match="old and reference log-probs"):
        assign_credit(samples, TokenScores(), values, CreditSettings(add_token_level_kl=True), alone)
    with pytest.raises(ValueError, match="finite"):
        assign_credit(samples, TokenScores(), floats(np.nan), CreditSettings(), alone)
    with pytest.raises(ValueError, match="2 row weights for 1 rows"):
        assign_credit(samples, TokenScores(), values, CreditSettings(), alone, np.ones(2))
