"""Row values and token credit against loops in float64, written from the formulas of docs/algorithms.md.

The loops use Python's own statistics and the sums that define a return (no recursion), and share no code with
roll.algorithms. Not covered: how the pipeline spreads rows over workers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from roll.algorithms.advantage import AdvantageSettings, MeanType, StdType, group_advantages
from roll.algorithms.credit import CreditSettings, assign_credit
from roll.algorithms.normalize import RunningMoments
from roll.types.batch import SampleBatch, TokenScores
from tests.unit.algorithms.rows import alone, near, on_ranks, random_samples

NAN = float("nan")


def deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def slow_row_values(
    rewards: Sequence[float], groups: Sequence[int], domains: Sequence[str], mean: str | None, std: str | None
) -> list[float]:
    result = []
    for i, r in enumerate(rewards):
        if math.isnan(r):
            result.append(0.0)
            continue
        known = [j for j, other in enumerate(rewards) if not math.isnan(other)]
        scopes = {
            "group": [rewards[j] for j in known if groups[j] == groups[i]],
            "batch": [rewards[j] for j in known if domains[j] == domains[i]],
            "running": [rewards[j] for j in known if domains[j] == domains[i]] + [3.0, 5.0],
            "leave_one_out": [rewards[j] for j in known if groups[j] == groups[i] and j != i],
        }
        value = r
        if mean is not None:
            value -= statistics.fmean(scopes[mean]) if scopes[mean] else r
        if std is not None and deviation(scopes[std]) > 1e-12:
            value /= deviation(scopes[std]) + 1e-6
        result.append(value)
    return result


NORMS: list[tuple[str, MeanType, StdType, str | None, str | None]] = [
    ("grpo", "default", "default", "group", "group"),
    ("grpo", "default", None, "group", None),
    ("grpo", "default", "batch", "group", "batch"),
    ("reinforce", "default", "default", None, None),
    ("reinforce", "batch", "batch", "batch", "batch"),
    ("reinforce", "running", "running", "running", "running"),
    ("reinforce", None, "group", None, "group"),
    ("reinforce_plus_plus", "default", "default", None, None),
    ("reinforce_plus_plus_baseline", "default", "default", "group", None),
    ("rloo", "default", "default", "leave_one_out", None),
    ("gae", "default", "default", None, None),
]


@pytest.mark.parametrize(("estimator", "mean_type", "std_type", "mean", "std"), NORMS)
def test_row_values_equal_the_loop(
    estimator: str, mean_type: MeanType, std_type: StdType, mean: str | None, std: str | None
) -> None:
    rng = np.random.default_rng(2)
    rewards = rng.normal(size=26).astype(np.float32)
    rewards[[3, 11, 12]] = NAN
    groups = rng.integers(0, 8, 26) * 10 - 1
    domains = np.array(["math", "code"])[groups % 2]
    domains[groups % 3 == 0] = "math"
    running = {d: RunningMoments().update(np.array([3.0, 5.0])).update(rewards[domains == d]) for d in ("math", "code")}

    settings = AdvantageSettings(estimator, mean_type, std_type)
    values, _ = group_advantages(rewards, groups, settings, domains, running)
    expected = slow_row_values(rewards.tolist(), groups.tolist(), domains.tolist(), mean, std)
    np.testing.assert_allclose(values, expected, rtol=2e-6, atol=1e-6)
    assert values.dtype == np.float32


def slow_credit(
    samples: SampleBatch, scores: TokenScores, row_values: Sequence[float], settings: CreditSettings
) -> tuple[np.ndarray, np.ndarray]:
    """(advantages, returns) before whitening of advantages, by the definitions; 0 outside the response mask."""
    old, ref, values = scores.old_log_probs, scores.ref_log_probs, scores.values
    assert old is not None
    assert ref is not None
    assert values is not None
    given = samples.token_rewards
    rows, start = [], 0
    for length in samples.lengths.tolist():
        rows.append([t for t in range(start, start + length) if samples.response_mask[t]])
        start += length
    reward = {}
    for row, value in zip(rows, row_values, strict=True):
        for t in row:
            reward[t] = float(given[t]) if given is not None else 0.0
            if settings.add_token_level_kl:
                d = float(old[t]) - float(ref[t])
                reward[t] -= (
                    settings.kl_coef * {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[settings.kl_penalty]
                )
            if t == row[-1]:
                reward[t] += value
            if settings.reward_clip is not None:
                reward[t] = min(max(reward[t], -settings.reward_clip), settings.reward_clip)
    if settings.whiten_rewards:
        scale = math.sqrt(statistics.variance(reward.values()) + 1e-8)
        reward = {t: r / scale for t, r in reward.items()}

    advantages, returns = np.zeros(samples.num_tokens), np.zeros(samples.num_tokens)
    for row in rows:
        for i, t in enumerate(row):
            if settings.estimator != "gae":
                advantages[t] = sum(settings.gamma**k * reward[u] for k, u in enumerate(row[i:]))
                continue
            for k, u in enumerate(row[i:]):
                value = float(values[u])
                next_value = float(values[row[i + k + 1]]) if i + k + 1 < len(row) else 0.0
                delta = reward[u] + settings.gamma * next_value - value
                advantages[t] += (settings.gamma * settings.lambd) ** k * delta
            returns[t] = advantages[t] + float(values[t])
    return advantages, returns


CREDIT: dict[str, CreditSettings] = {
    "broadcast": CreditSettings(),
    "discounted": CreditSettings("reinforce", gamma=0.9),
    "KL in the reward": CreditSettings("reinforce", gamma=0.95, add_token_level_kl=True, kl_coef=0.1, kl_penalty="k3"),
    "KL, clip, whitened rewards": CreditSettings(
        "reinforce", add_token_level_kl=True, kl_coef=0.5, kl_penalty="k1", reward_clip=0.4, whiten_rewards=True
    ),
    "GAE": CreditSettings("gae", gamma=0.97, lambd=0.8),
    "GAE, lambda 1": CreditSettings("gae", lambd=1.0),
    "GAE, lambda 0, KL": CreditSettings("gae", lambd=0.0, add_token_level_kl=True, kl_coef=0.2, kl_penalty="k2"),
}


def random_scores(rng: np.random.Generator, samples: SampleBatch) -> TokenScores:
    return TokenScores(
        old_log_probs=near(rng, samples, 0.2),
        ref_log_probs=near(rng, samples, 0.6),
        values=(rng.normal(size=samples.num_tokens) * samples.response_mask).astype(np.float32),
    )


@pytest.mark.parametrize("token_rewards", [False, True])
@pytest.mark.parametrize("name", CREDIT)
def test_token_credit_equals_the_loop(name: str, token_rewards: bool) -> None:
    settings = CREDIT[name]
    rng = np.random.default_rng(4)
    samples = random_samples(rng, [4, 0, 1, 9, 6], turns=2)
    if token_rewards:
        samples = replace(samples, token_rewards=rng.normal(size=samples.num_tokens).astype(np.float32))
    scores, row_values = random_scores(rng, samples), rng.normal(size=5).astype(np.float32)

    batch, _ = assign_credit(samples, scores, row_values, settings, alone)
    advantages, returns = slow_credit(samples, scores, row_values.tolist(), settings)
    np.testing.assert_allclose(batch.advantages, advantages, rtol=1e-5, atol=2e-6)
    if settings.estimator == "gae":
        assert batch.returns is not None
        np.testing.assert_allclose(batch.returns, returns, rtol=1e-5, atol=2e-6)
    else:
        assert batch.returns is None


WHITENED = (
    CreditSettings("gae", lambd=0.9, whiten_advantages=True, advantage_clip=1.0),
    CreditSettings("reinforce_plus_plus", add_token_level_kl=True, kl_coef=0.1, kl_penalty="k1", whiten_rewards=True),
    CreditSettings("reinforce_plus_plus_baseline", gamma=0.9),
    CreditSettings("gdpo", keeps_zero=True),
    CreditSettings("gdpo", whiten_advantages=True),
)


@pytest.mark.parametrize("settings", WHITENED)
def test_whitened_credit_does_not_depend_on_the_number_of_ranks(settings: CreditSettings) -> None:
    """Three ranks, one of them without rows, against one rank and against the statistics of the loop."""
    rng = np.random.default_rng(8)
    samples = random_samples(rng, [4, 1, 9, 6, 2])
    scores, row_values = random_scores(rng, samples), rng.normal(size=5).astype(np.float32)
    shards = [np.array([3, 0]), np.array([], np.int64), np.array([1, 4, 2])]

    def work(rank: int, all_reduce_sum: Callable[[Sequence[float]], list[float]]) -> np.ndarray:
        rows = shards[rank]
        lengths = samples.lengths
        starts = np.cumsum(lengths) - lengths
        tokens = np.concatenate([np.arange(starts[r], starts[r] + lengths[r]) for r in rows] + [np.array([], np.int64)])
        columns = {name: getattr(scores, name) for name in ("old_log_probs", "ref_log_probs", "values")}
        part = TokenScores(**{name: None if column is None else column[tokens] for name, column in columns.items()})
        batch, _ = assign_credit(samples.select(rows), part, row_values[rows], settings, all_reduce_sum)
        spread = np.full(samples.num_tokens, NAN)
        spread[tokens] = batch.advantages
        return spread

    parts = on_ranks(3, work)
    together = np.nansum(parts, axis=0)
    whole, _ = assign_credit(samples, scores, row_values, settings, alone)
    np.testing.assert_allclose(together, whole.advantages, rtol=1e-6, atol=1e-7)

    raw, _ = slow_credit(samples, scores, row_values.tolist(), settings)
    inside = raw[samples.response_mask]
    lengths = samples.response_lengths
    counts = np.repeat(1 / lengths, lengths) if settings.whitening == "rows" else np.ones(len(inside))
    mean = (counts * inside).sum() / counts.sum()
    variance = (counts * (inside - mean) ** 2).sum() / (counts.sum() - 1)
    expected = (inside - (0 if settings.keeps_zero else mean)) / np.sqrt(variance + 1e-8)
    limit = settings.advantage_clip or np.inf
    expected = np.clip(expected, -limit, limit)
    np.testing.assert_allclose(whole.advantages[samples.response_mask], expected, rtol=1e-5, atol=2e-6)


def turns_of(samples: SampleBatch) -> list[list[list[int]]]:
    """Flat positions of the response tokens of each row's turns."""
    rows, start = [], 0
    for length in samples.lengths.tolist():
        turns: list[list[int]] = []
        for t in range(start, start + length):
            if samples.response_mask[t]:
                if t == start or not samples.response_mask[t - 1]:
                    turns.append([])
                turns[-1].append(t)
        rows.append(turns)
        start += length
    return rows


@pytest.mark.parametrize("with_kl", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_turn_values_equal_the_loop(with_kl: bool, weighted: bool) -> None:
    """Every token of a turn has the turn's value, and the KL to come when it counts; row values are not looked at, and
    a row of weight 0 loses its turns without shifting those of the rows behind it."""
    rng = np.random.default_rng(6)
    samples = random_samples(rng, [7, 0, 2, 9, 3], turns=3)
    scores = random_scores(rng, samples)
    turns = turns_of(samples)
    turn_values = rng.normal(size=sum(len(row) for row in turns))
    weights = np.array([1.0, 1.0, 0.0, 0.5, 1.0]) if weighted else None
    settings = CreditSettings("agentic_reinforce", gamma=1.0, add_token_level_kl=with_kl, kl_coef=0.3, kl_penalty="k1")

    batch, _ = assign_credit(
        samples, scores, rng.normal(size=5).astype(np.float32), settings, alone, weights, turn_values
    )
    expected, next_turn = np.zeros(samples.num_tokens), 0
    for number, row in enumerate(turns):
        tokens = [t for turn in row for t in turn]
        for turn in row:
            for t in turn:
                if weights is not None and weights[number] == 0:
                    continue
                expected[t] = turn_values[next_turn]
                for u in tokens[tokens.index(t) :] if with_kl else []:
                    assert scores.old_log_probs is not None and scores.ref_log_probs is not None
                    expected[t] -= 0.3 * (float(scores.old_log_probs[u]) - float(scores.ref_log_probs[u]))
            next_turn += 1
    np.testing.assert_allclose(batch.advantages, expected, rtol=1e-5, atol=2e-6)


def test_turn_values_that_do_not_fit_are_an_error() -> None:
    samples = random_samples(np.random.default_rng(0), [4, 2], turns=2)
    with pytest.raises(ValueError, match="3 turn values for 4 turns"):
        assign_credit(
            samples, TokenScores(), np.zeros(2, np.float32), CreditSettings("gigpo"), alone, turn_values=np.zeros(3)
        )
