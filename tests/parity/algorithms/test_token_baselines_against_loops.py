"""Credit with the optimal token baseline against loops in float64 that have every logit of a vocabulary.

The loops take softmaxes of random logits, sum squares of probabilities, and follow the formula token by token. What is
compared has the log-probs of the sampled tokens alone, at the temperature and at half of it, in float32. So this proves
the identity by which the second pass holds the sum of squares, and the arithmetic of groups, of ragged rows and of
ranks. Not covered: that a strategy's log-probs are those of its model (tests/contract).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from roll.algorithms.credit import CreditSettings, RowCredit
from roll.algorithms.token_baselines import TokenGroups, path_variances
from roll.types.batch import SampleBatch, TokenScores
from tests.unit.algorithms.rows import alone, on_ranks, random_samples

ESTIMATORS = ("optimal_token_baseline",)
TEMPERATURE, VOCABULARY = 0.7, 11
Logits = list[list[list[float]]]
"""Of the response tokens of each row."""


class Case(NamedTuple):
    samples: SampleBatch
    scores: TokenScores
    logits: Logits
    chosen: list[list[int]]


def probabilities(logits: list[float], temperature: float) -> list[float]:
    exponentials = [math.exp(logit / temperature) for logit in logits]
    return [each / sum(exponentials) for each in exponentials]


def slow_weights(logits: list[list[float]], chosen: list[int]) -> list[float]:
    """Sums, up to each token, of the squared norm of d log p / d logits, one entry of the vocabulary at a time."""
    sums, total = list[float](), 0.0
    for raw, token in zip(logits, chosen, strict=True):
        probs = probabilities(raw, TEMPERATURE)
        total += sum(((1.0 if i == token else 0.0) - p) ** 2 for i, p in enumerate(probs))
        sums.append(total)
    return sums


def slow_advantages(returns: list[list[float]], weights: list[list[float]], groups: list[int]) -> list[list[float]]:
    advantages = [list(row) for row in returns]
    for i, row in enumerate(returns):
        for t in range(len(row)):
            alive = [j for j in range(len(returns)) if groups[j] == groups[i] and len(returns[j]) > t]
            if len(alive) > 1:
                total = sum(weights[j][t] for j in alive)
                advantages[i][t] -= sum(weights[j][t] * returns[j][t] for j in alive) / total
    return advantages


def case(lengths: Sequence[int], turns: int = 1, spread: float = 2.0, seed: int = 3) -> Case:
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, lengths, turns)
    samples = replace(samples, group_ids=np.arange(len(lengths), dtype=np.int64) // 4)
    logits = [(rng.normal(size=(n, VOCABULARY)) * spread).tolist() for n in lengths]
    chosen = [rng.integers(0, VOCABULARY, n).tolist() for n in lengths]
    flat = {}
    for name, temperature in (("old_log_probs", TEMPERATURE), ("halved_log_probs", TEMPERATURE / 2)):
        values = [
            math.log(probabilities(raw, temperature)[token])
            for row, tokens in zip(logits, chosen, strict=True)
            for raw, token in zip(row, tokens, strict=True)
        ]
        flat[name] = np.zeros(samples.num_tokens, np.float32)
        flat[name][samples.response_mask] = values
    return Case(samples, TokenScores(**flat), logits, chosen)


def credit(of: Case, settings: CreditSettings) -> RowCredit:
    groups = TokenGroups.of_rows(of.samples.group_ids, of.samples.response_lengths)
    return RowCredit(settings, of.samples.rewards.astype(np.float64), groups=groups)


def expected(of: Case, gamma: float = 1.0) -> np.ndarray:
    lengths = of.samples.response_lengths
    returns = [
        [float(reward) * gamma ** (n - 1 - t) for t in range(n)]
        for reward, n in zip(of.samples.rewards, lengths, strict=True)
    ]
    weights = [slow_weights(raw, tokens) for raw, tokens in zip(of.logits, of.chosen, strict=True)]
    advantages = slow_advantages(returns, weights, of.samples.group_ids.tolist())
    out = np.zeros(of.samples.num_tokens)
    out[of.samples.response_mask] = [each for row in advantages for each in row]
    return out


SETTINGS = CreditSettings(estimator="optimal_token_baseline")
TOLERANCE = 2e-5  # log-probs are float32: of -20, which these logits have, the last bit is 2e-6
LENGTHS = (5, 3, 7, 1, 2, 2, 0, 4, 6)


@pytest.mark.parametrize(
    ("lengths", "turns", "gamma"), [(LENGTHS, 1, 1.0), (LENGTHS, 3, 1.0), (LENGTHS, 1, 0.9), ((4, 4, 4, 4), 1, 1.0)]
)
def test_advantages_are_those_of_the_loops(lengths: tuple[int, ...], turns: int, gamma: float) -> None:
    of = case(lengths, turns)
    batch, _ = credit(of, replace(SETTINGS, gamma=gamma)).assign(of.samples, of.scores, alone)
    np.testing.assert_allclose(batch.advantages, expected(of, gamma), atol=TOLERANCE)


def test_a_group_may_be_on_several_ranks() -> None:
    of = case(LENGTHS)
    parts = np.array_split(np.arange(len(LENGTHS)), 3)
    whole = expected(of)
    lengths = of.samples.lengths

    def work(rank: int, all_reduce_sum: Callable[[Sequence[float]], list[float]]) -> np.ndarray:
        rows = parts[rank]
        tokens = np.concatenate([np.arange(lengths[:row].sum(), lengths[: row + 1].sum()) for row in rows])
        scores = TokenScores(of.scores.old_log_probs[tokens], of.scores.halved_log_probs[tokens])  # type: ignore[index]
        batch, _ = credit(of, SETTINGS).of(rows).assign(of.samples.select(rows), scores, all_reduce_sum)
        np.testing.assert_allclose(batch.advantages, whole[tokens], atol=TOLERANCE)
        return batch.advantages

    assert len(on_ranks(3, work)) == 3


def test_tokens_behind_ones_that_are_too_old_keep_their_places() -> None:
    of = case((4, 4, 4, 4))
    own = np.flatnonzero(of.samples.response_mask)
    versions = np.full(of.samples.num_tokens, 5, np.int32)
    versions[own[:2]] = 1  # the first two tokens of the first row
    samples = replace(of.samples, policy_versions=versions)
    settings = replace(SETTINGS, version=5, max_lag=2)
    batch, _ = credit(of, settings).assign(samples, of.scores, alone)
    returns = [[float(reward)] * 4 for reward in of.samples.rewards]
    weights = [slow_weights(raw, tokens) for raw, tokens in zip(of.logits, of.chosen, strict=True)]
    whole = slow_advantages(returns, weights, [0] * 4)
    others = slow_advantages(returns[1:], weights[1:], [0] * 3)
    pairs = zip(others, whole[1:], strict=True)
    rows = [[0.0, 0.0, *whole[0][2:]], *([*before[:2], *behind[2:]] for before, behind in pairs)]
    want = [each for row in rows for each in row]
    np.testing.assert_allclose(batch.advantages[own], want, atol=TOLERANCE)


def test_baselines_of_tokens_are_those_of_their_group() -> None:
    of = case((3, 1, 5, 2))
    batch, _ = credit(of, SETTINGS).assign(of.samples, of.scores, alone)
    of_longest = batch.advantages[of.samples.response_mask][4:9]
    assert of_longest[3:] == pytest.approx([of.samples.rewards[2]] * 2)
    of, weights = case(LENGTHS), np.ones(len(LENGTHS))
    weights[[1, 5]] = 0
    batch, _ = replace(credit(of, SETTINGS), row_weights=weights).assign(of.samples, of.scores, alone)
    of_trained = np.repeat(weights > 0, of.samples.lengths)
    np.testing.assert_allclose(batch.advantages, expected(of) * of_trained, atol=TOLERANCE)
    of = case((4, 4, 4, 4))
    moved = Case(replace(of.samples, rewards=of.samples.rewards + 5), of.scores, of.logits, of.chosen)
    first, second = (credit(each, SETTINGS).assign(each.samples, each.scores, alone)[0] for each in (of, moved))
    np.testing.assert_allclose(first.advantages, second.advantages, atol=1e-4)
    of = case((2, 2))
    with pytest.raises(ValueError, match="half the temperature"):
        credit(of, SETTINGS).assign(of.samples, TokenScores(of.scores.old_log_probs), alone)


@pytest.mark.parametrize("certain", [False, True])
def test_a_group_with_equal_rewards_gets_exactly_zero_from_certain_tokens_too(certain: bool) -> None:
    of = case((4, 4, 4, 4))
    if certain:
        nought = np.zeros(of.samples.num_tokens, np.float32)
        of = of._replace(scores=TokenScores(nought, halved_log_probs=nought))
    of = of._replace(samples=replace(of.samples, rewards=np.full(4, 0.7, np.float32)))
    batch, _ = credit(of, SETTINGS).assign(of.samples, of.scores, alone)
    assert not batch.advantages.any()


@pytest.mark.parametrize("spread", [0.0, 2.0, 20.0])
def test_variances_are_sums_over_the_vocabulary_from_even_to_certain_tokens(spread: float) -> None:
    of = case((6, 3), spread=spread)
    own, half = (scores[of.samples.response_mask] for scores in (of.scores.old_log_probs, of.scores.halved_log_probs))  # type: ignore[index]
    found = path_variances(own, half, of.samples.response_lengths)
    slow = [each for raw, tokens in zip(of.logits, of.chosen, strict=True) for each in slow_weights(raw, tokens)]
    np.testing.assert_allclose(found, slow, atol=1e-4)
