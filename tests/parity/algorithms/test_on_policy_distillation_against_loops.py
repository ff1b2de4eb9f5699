"""Advantages of on-policy distillation against a loop over single tokens in float64, written from docs/distillation.md,
and that a run without it computes what it did. Not covered: who scores which rows (tests/unit/rl/test_opd.py)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from roll.algorithms.credit import CreditSettings, assign_credit
from roll.types.batch import TokenScores
from tests.unit.algorithms.rows import alone, near, random_samples

LENGTHS = [3, 0, 5, 2]


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("clip", [None, 0.4])
@pytest.mark.parametrize("whitens", [False, True])
def test_each_token_gets_its_own_gap_to_the_teacher_on_top(pure: bool, clip: float | None, whitens: bool) -> None:
    """Rows of two teachers of different weight; rewards that are whitened over the batch or not."""
    rng = np.random.default_rng(3)
    samples = random_samples(rng, LENGTHS, turns=2)
    old, teacher = near(rng, samples, 0.3), near(rng, samples, 0.8)
    weights, values = np.array([1.0, 1.0, 0.5, 0.5]), np.zeros(4) if pure else np.array([0.7, 9.0, -0.2, 0.1])
    settings = CreditSettings(advantage_clip=clip, whiten_advantages=whitens)
    scores = TokenScores(old_log_probs=old, teacher_log_probs=teacher)
    batch, metrics = assign_credit(samples, scores, values, settings, alone, teacher_weights=weights)

    starts = np.cumsum(samples.lengths) - samples.lengths
    own = {
        int(t): row
        for row, (start, length) in enumerate(zip(starts, samples.lengths, strict=True))
        for t in range(start, start + length)
        if samples.response_mask[t]
    }
    rewards = [float(values[row]) for row in own.values()]
    if whitens:
        mean = sum(rewards) / len(rewards)
        spread = (sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) ** 0.5
        rewards = [0.0 if pure else (r - mean) / spread for r in rewards]
    divergence = 0.0
    want = np.zeros(samples.num_tokens)
    for (t, row), reward in zip(own.items(), rewards, strict=True):
        gap = float(teacher[t]) - float(old[t])
        divergence -= gap / len(own)
        want[t] = reward + weights[row] * gap
        if clip is not None:
            want[t] = min(max(want[t], -clip), clip)
    np.testing.assert_allclose(batch.advantages, want, rtol=1e-3 if whitens else 1e-6, atol=1e-6)
    assert metrics.result()["teacher_kl_mean"] == pytest.approx(divergence, rel=1e-6)


def test_rewards_of_tokens_teach_nothing_beside_a_teacher_alone() -> None:
    rng = np.random.default_rng(5)
    samples = random_samples(rng, LENGTHS)
    paid = replace(samples, token_rewards=np.ones(samples.num_tokens, np.float32))
    scores = TokenScores(old_log_probs=near(rng, samples, 0.3), teacher_log_probs=near(rng, samples, 0.8))
    settings, weights = CreditSettings(teacher_alone=True), np.ones(4)
    wanted, found = (
        assign_credit(rows, scores, np.zeros(4), settings, alone, teacher_weights=weights)[0].advantages
        for rows in (samples, paid)
    )
    assert np.array_equal(found, wanted)
