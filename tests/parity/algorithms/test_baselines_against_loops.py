"""Row values by functions of the attempts against loops in float64, written from the formulas of docs/algorithms.md.

The loops take plain Python numbers, one group at a time, and share no code with roll.algorithms. Not covered: what
makes tokens of the values (test_credit_against_loops.py); the gradient is that of the policy loss with the values as
constants (test_losses_against_loops.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from roll.algorithms.advantage import AdvantageSettings, StdType, group_advantages
from roll.algorithms.episodes import EpisodeSettings, episode_advantages
from roll.types.batch import RowMeta

Groups = list[list[tuple[float, int]]]
"""Reward and length of the attempts of each group."""
NAN = float("nan")


def slow_opo(groups: Groups) -> list[list[float]]:
    baselines = [sum(n * r for r, n in group) / sum(n for _, n in group) for group in groups]
    return [[r - baseline for r, _ in group] for group, baseline in zip(groups, baselines, strict=True)]


def slow_gpg(groups: Groups) -> list[list[float]]:
    telling = sum(len(group) for group in groups if len({r for r, _ in group}) > 1)
    factor = sum(map(len, groups)) / telling
    return [[factor * (r - statistics.fmean(r for r, _ in group)) for r, _ in group] for group in groups]


def slow_lead(groups: Groups) -> list[list[float]]:
    """The best of all minus the best without this one, for every attempt by its definition."""
    values = []
    for group in groups:
        rewards = [r for r, _ in group]
        others = [rewards[:i] + rewards[i + 1 :] for i in range(len(rewards))]
        values.append([max(rewards) - max(rest, default=max(rewards)) for rest in others])
    return values


def slow_passk(groups: Groups) -> list[list[float]]:
    values = []
    for group, leads in zip(groups, slow_lead(groups), strict=True):
        spread = statistics.stdev(r for r, _ in group) if len({r for r, _ in group}) > 1 else 0.0
        values.append([lead / (spread + 1e-6) if spread else lead for lead in leads])
    return values


def slow_asymre(groups: Groups) -> list[list[float]]:
    return [
        [r - (statistics.fmean(s for s, _ in group) - 0.25) if len(group) > 1 else 0.0 for r, _ in group]
        for group in groups
    ]


def slow_best(groups: Groups) -> list[list[float]]:
    values = []
    for group in groups:
        rewards = [r for r, _ in group]
        values.append([float(i == rewards.index(max(rewards))) for i in range(len(rewards))])
    return values


def slow_logavgexp(groups: Groups, tau: float) -> list[list[float]]:
    return [
        [r - tau * math.log(statistics.fmean(math.exp(s / tau) for s, _ in group)) for r, _ in group]
        for group in groups
    ]


def slow_mean(groups: Groups) -> list[list[float]]:
    return [[r - statistics.fmean(s for s, _ in group) for r, _ in group] for group in groups]


def slow_gdpo(groups: list[list[list[float]]], weights: list[float]) -> list[list[float]]:
    """Each attempt is the list of its parts."""
    values = []
    for group in groups:
        columns = list(zip(*group, strict=True))
        means = [statistics.fmean(column) for column in columns]
        spreads = [statistics.stdev(column) if len(set(column)) > 1 else 0.0 for column in columns]
        values.append(
            [
                sum(
                    w * (p - m) / (s + 1e-6) if s else 0.0
                    for w, p, m, s in zip(weights, parts, means, spreads, strict=True)
                )
                for parts in group
            ]
        )
    return values


BASELINES: dict[str, Callable[[Groups], list[list[float]]]] = {
    "opo": slow_opo,
    "gpg": slow_gpg,
    "grpo_passk": slow_passk,
    "asymre": slow_asymre,
    "raft": slow_best,
    "opmd": slow_mean,
}
NAMED = {*BASELINES, "remax", "gdpo"}
"""The estimators that have a loop here."""
ARGS: dict[str, dict[str, Any]] = {
    "asymre": {"asymre_baseline_shift": -0.25},
    "raft": {"raft_keep": "best"},
    "opmd": {"opmd_baseline": "mean", "opmd_baseline_tau": 1.0},
}
VARIED: dict[str, tuple[AdvantageSettings, Callable[[Groups], list[list[float]]]]] = {
    "grpo_passk without its deviation": (AdvantageSettings("grpo_passk", norm_std_type=None), slow_lead),
    **{
        f"opmd, logavgexp {tau}": (
            AdvantageSettings("opmd", args={"opmd_baseline": "logavgexp", "opmd_baseline_tau": tau}),
            partial(slow_logavgexp, tau=tau),
        )
        for tau in (0.01, 0.7, 30.0)
    },
}


def settings_of(name: str, std: StdType = "default") -> AdvantageSettings:
    return AdvantageSettings(name, norm_std_type=std, args=ARGS.get(name, {}))


def random_rows(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, groups, lengths: ties, failed attempts, groups with equal rewards and with one attempt."""
    rng = np.random.default_rng(seed)
    groups = np.append(rng.permutation(np.repeat(np.arange(7) * 10 - 1, 4)), [999])
    rewards = rng.choice([0.0, 0.25, 1.0, -0.5], len(groups)).astype(np.float32)
    rewards[groups == 19] = 0.1
    rewards[[2, 9, 10]] = NAN
    return rewards, groups, rng.integers(1, 40, len(groups))


def expected_of(loop: Callable[[Groups], list[list[float]]], seed: int) -> np.ndarray:
    rewards, groups, lengths = random_rows(seed)
    rows = [np.flatnonzero((groups == group) & ~np.isnan(rewards)) for group in np.unique(groups)]
    rows = [row for row in rows if len(row)]
    values = loop([[(float(rewards[i]), int(lengths[i])) for i in row] for row in rows])
    expected = np.zeros(len(rewards))
    for row, of_group in zip(rows, values, strict=True):
        expected[row] = of_group
    return expected


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", BASELINES)
def test_row_values_equal_the_loop(name: str, seed: int) -> None:
    rewards, groups, lengths = random_rows(seed)
    values, _ = group_advantages(rewards, groups, settings_of(name), lengths=lengths)
    np.testing.assert_allclose(values, expected_of(BASELINES[name], seed), rtol=2e-6, atol=1e-6)
    assert np.abs(values).max() > 0.1
    if name != "raft":
        assert set(values[groups == 999]) == {0.0}
    if name not in ("asymre", "raft"):
        assert set(values[groups == 19]) == {0.0}


@pytest.mark.parametrize("seed", range(4))
def test_remax_compares_with_the_greedy_answer(seed: int) -> None:
    """Also a group of one, and one with equal rewards; where the greedy answer failed nothing is compared."""
    rewards, groups, _ = random_rows(seed)
    told = (0.5, 0.0, 1.0, NAN, 0.25, -1.0, 2.0, 0.75)
    greedy = np.array(told)[np.unique(groups, return_inverse=True)[1]]
    values, _ = group_advantages(rewards, groups, AdvantageSettings("remax"), greedy_rewards=greedy)
    np.testing.assert_allclose(values, np.nan_to_num(rewards - greedy), rtol=0, atol=1e-6)
    assert set(np.abs(values[groups == 19])) != {0.0} and values[groups == 999] != 0
    with pytest.raises(ValueError, match="no reward of a greedy response"):
        group_advantages(rewards, groups, AdvantageSettings("remax"))


@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 2.0]])
@pytest.mark.parametrize("seed", range(3))
def test_gdpo_compares_each_part_by_itself(seed: int, weights: list[float] | None) -> None:
    rewards, groups, _ = random_rows(seed)
    rng = np.random.default_rng(seed)
    parts = np.stack([rng.choice([0.0, 1.0], len(groups)), rng.normal(size=len(groups)), np.ones(len(groups))], axis=1)
    parts[np.isnan(rewards)] = NAN
    args = {"gdpo_reward_keys": ("a", "b", "c"), "gdpo_reward_weights": weights}
    values, _ = group_advantages(rewards, groups, AdvantageSettings("gdpo", args=args), parts=parts)
    rows = [np.flatnonzero((groups == group) & ~np.isnan(rewards)) for group in np.unique(groups)]
    expected = np.zeros(len(rewards))
    of_groups = slow_gdpo([parts[row].tolist() for row in rows], weights or [1.0] * 3)
    for row, of_group in zip(rows, of_groups, strict=True):
        expected[row] = of_group
    np.testing.assert_allclose(values, expected, rtol=2e-6, atol=1e-6)
    assert np.abs(values[groups == 19]).max() > 0.1, "equal sums, and parts that differ"
    assert set(values[groups == 999]) == {0.0} and set(values[np.isnan(rewards)]) == {0.0}
    with pytest.raises(ValueError, match="no parts of rewards"):
        group_advantages(rewards, groups, AdvantageSettings("gdpo", args=args))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", VARIED)
def test_row_values_of_other_settings_equal_the_loop(name: str, seed: int) -> None:
    rewards, groups, lengths = random_rows(seed)
    settings, loop = VARIED[name]
    values, _ = group_advantages(rewards, groups, settings, lengths=lengths)
    np.testing.assert_allclose(values, expected_of(loop, seed), rtol=2e-6, atol=1e-6)
    assert set(values[groups == 19]) == set(values[groups == 999]) == {0.0}


def test_raft_keeps_the_first_best_or_all_above_zero() -> None:
    rewards, groups = np.array([0, 1, 1, -1, 0, 0, np.nan, -2]), np.array([3, 3, 3, 3, 1, 1, 1, 0])
    kept = {
        keep: group_advantages(rewards, groups, AdvantageSettings("raft", args={"raft_keep": keep}))[0].tolist()
        for keep in ("best", "positive")
    }
    assert kept == {"best": [0, 1, 0, 0, 1, 0, 0, 1], "positive": [0, 1, 1, 0, 0, 0, 0, 0]}


def test_examples_of_the_docstrings() -> None:
    def values(name: str, rewards: list[float], lengths: list[int], std: StdType = "default") -> list[float]:
        at = np.zeros(len(rewards), np.int64)
        return group_advantages(np.array(rewards), at, settings_of(name, std), lengths=np.array(lengths))[0].tolist()

    assert values("opo", [1, 0], [1, 3]) == [0.75, -0.25]
    assert values("grpo_passk", [1, 0.4, 0], [1, 1, 1], None) == pytest.approx([0.6, 0, 0])
    assert values("grpo_passk", [1, 1, 0], [1, 1, 1]) == [0, 0, 0]
    two, args = np.array([[1.0, 0.0], [0.0, 1.0]]), {"gdpo_reward_keys": ("a", "b")}
    for weights, first in ((None, 0.0), ((1.0, 0.5), 0.354)):
        settings = AdvantageSettings("gdpo", args={**args, "gdpo_reward_weights": weights})
        assert group_advantages(np.ones(2), np.zeros(2, np.int64), settings, parts=two)[0].tolist() == pytest.approx(
            [first, -first], abs=1e-3
        )
    pair, greedy = (np.array([1.0, 0.0]), np.zeros(2, np.int64)), np.ones(2)
    assert group_advantages(*pair, AdvantageSettings("remax"), greedy_rewards=greedy)[0].tolist() == [0, -1]


def test_the_length_of_an_episode_is_that_of_all_its_rows() -> None:
    """Two episodes of a group, one in two rows: 1 + 2 tokens earn 1, 1 token earns 0; the baseline is 3 / 4."""
    rows = 3
    meta = RowMeta(
        lengths=np.ones(rows, np.int32),
        response_lengths=np.array([1, 1, 2]),
        rewards=np.array([1, 0, 1], np.float32),
        group_ids=np.zeros(rows, np.int64),
        trajectory_ids=np.array([4, 7, 4]),
        turns=np.array([0, 0, 1], np.int32),
        domains=np.full(rows, "tag"),
        finish_reasons=np.zeros(rows, np.int8),
    )
    values, _ = episode_advantages(meta, EpisodeSettings(settings_of("opo")))
    assert values.tolist() == [0.25, -0.75, 0.25]
