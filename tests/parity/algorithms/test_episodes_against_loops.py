"""Advantages of turns and episodes against plain float64 loops, written from the formulas.

They compare what every turn of random episodes gets, in both sample forms, with failed episodes, ties and states met
once. Not covered: how turn values are spread over tokens (tests/unit/algorithms/test_credit.py).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest

from roll.algorithms.advantage import AdvantageSettings
from roll.algorithms.episodes import EpisodeSettings, episode_advantages, turn_advantages
from roll.types.batch import RowMeta


@dataclass
class Episode:
    group: int
    domain: str
    rewards: list[float]
    states: list[int]
    failed: bool


def random_episodes(seed: int, groups: int = 5, size: int = 4) -> list[Episode]:
    rng = random.Random(seed)
    found = []
    for group in range(groups):
        for _ in range(size):
            turns = rng.randint(1, 5)
            rewards = [rng.choice([0.0, 0.0, 1.0, -0.1]) for _ in range(turns)]
            states = [rng.randint(0, 3) for _ in range(turns)]
            found.append(Episode(group, "ab"[group % 2], rewards, states, rng.random() < 0.15))
    return found


def rows_of(episodes: list[Episode], by_step: bool) -> RowMeta:
    """One row per episode, or one per turn."""
    owners = [i for i, e in enumerate(episodes) for _ in (e.rewards if by_step and not e.failed else [0])]
    turns = [0 if e.failed else 1 if by_step else len(e.rewards) for i in owners for e in [episodes[i]]]
    flat = [r for e in episodes if not e.failed for r in e.rewards]
    places = [sum(1 for j in owners[:n] if j == i) for n, i in enumerate(owners)]
    states = [episodes[i].states[p] if by_step else 0 for i, p in zip(owners, places, strict=True)]
    return RowMeta(
        lengths=np.ones(len(owners), np.int32),
        response_lengths=np.ones(len(owners), np.int64),
        rewards=np.array([math.nan if episodes[i].failed else sum(episodes[i].rewards) for i in owners], np.float32),
        group_ids=np.array([episodes[i].group for i in owners], np.int64),
        trajectory_ids=np.array(owners, np.int64),
        turns=np.array(places, np.int32),
        domains=np.array([episodes[i].domain for i in owners]),
        finish_reasons=np.ones(len(owners), np.int8),
        num_turns=np.array(turns, np.int64),
        turn_rewards=np.array(flat, np.float64),
        state_keys=np.array(states, np.int64),
    )


def returns(episode: Episode, gamma: float) -> list[float]:
    found = [0.0] * len(episode.rewards)
    for k in range(len(found)):
        for later in range(k, len(found)):
            found[k] += gamma ** (later - k) * episode.rewards[later]
    return found


def normalised(value: float, others: list[float], mean: bool, std: bool) -> float:
    centre = sum(others) / len(others)
    spread = math.sqrt(sum((o - centre) ** 2 for o in others) / (len(others) - 1)) if len(others) > 1 else 0.0
    if max(others) == min(others):
        spread = 0.0
    out = value - centre if mean else value
    return out / (spread + 1e-6) if std and spread else out


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("std", [True, False])
def test_gigpo(seed: int, std: bool) -> None:
    episodes = random_episodes(seed)
    meta = rows_of(episodes, by_step=True)
    advantages = AdvantageSettings("gigpo", "default", "default" if std else None)
    got, _ = turn_advantages(meta, EpisodeSettings(advantages, turn_gamma=0.9, episode_weight=0.7, step_weight=0.4))
    expected = []
    for episode in episodes:
        if episode.failed:
            continue
        mates = [e for e in episodes if e.group == episode.group and not e.failed]
        whole = normalised(
            float(np.float32(sum(episode.rewards))), [float(np.float32(sum(e.rewards))) for e in mates], True, std
        )
        for state, value in zip(episode.states, returns(episode, 0.9), strict=True):
            same = [g for e in mates for s, g in zip(e.states, returns(e, 0.9), strict=True) if s == state]
            expected.append(0.7 * whole + 0.4 * normalised(value, same, True, std))
    np.testing.assert_allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mean, std", [(None, None), ("group", None), ("batch", "batch"), ("group", "group")])
@pytest.mark.parametrize("by_domain", [True, False])
def test_step_reinforce(seed: int, mean: str | None, std: str | None, by_domain: bool) -> None:
    episodes = random_episodes(seed)
    meta = rows_of(episodes, by_step=True)
    settings = EpisodeSettings(AdvantageSettings("step_reinforce", mean, std), 0.8, by_domain=by_domain)  # type: ignore[arg-type]
    got, _ = turn_advantages(meta, settings)
    expected = []
    for episode in (e for e in episodes if not e.failed):
        for value in returns(episode, 0.8):
            centred = normalised(
                value, scope_of(episode, episodes, mean, by_domain, first=False, gamma=0.8), bool(mean), False
            )
            by = normalised(1.0, scope_of(episode, episodes, std, by_domain, first=False, gamma=0.8), False, True)
            expected.append(centred * by if std else centred)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mean, std", [(None, None), ("group", None), ("batch", "batch"), ("group", "group")])
@pytest.mark.parametrize("by_step", [True, False])
def test_agentic_reinforce(seed: int, mean: str | None, std: str | None, by_step: bool) -> None:
    episodes = random_episodes(seed)
    meta = rows_of(episodes, by_step=by_step)
    settings = EpisodeSettings(AdvantageSettings("agentic_reinforce", mean, std), turn_gamma=0.8)  # type: ignore[arg-type]
    got, _ = turn_advantages(meta, settings)
    expected = []
    for episode in (e for e in episodes if not e.failed):
        for value in returns(episode, 0.8):
            centred = normalised(
                value, scope_of(episode, episodes, mean, False, first=True, gamma=0.8), bool(mean), False
            )
            by = normalised(1.0, scope_of(episode, episodes, std, False, first=True, gamma=0.8), False, True)
            expected.append(centred * by if std else centred)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)


def scope_of(
    episode: Episode, episodes: list[Episode], kind: str | None, by_domain: bool, first: bool, gamma: float
) -> list[float]:
    """The returns that a turn is compared with: of first turns, or of all."""
    mates = [e for e in episodes if not e.failed]
    if kind == "group":
        mates = [e for e in mates if e.group == episode.group]
    elif by_domain:
        mates = [e for e in mates if e.domain == episode.domain]
    return [g for e in mates for g in (returns(e, gamma)[:1] if first else returns(e, gamma))]


def clipped(value: float) -> float:
    return -1.0 if value < -1 else 3.0 if value > 3 else value


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("by_tag", [True, False])
@pytest.mark.parametrize("estimator", ["grpo", "step_reinforce", "gigpo", "agentic_reinforce"])
def test_asym_clip_cuts_what_is_normalised(seed: int, by_tag: bool, estimator: str) -> None:
    """`asym_clip` over the step, or over the episodes of a tag (the groupings tags and inductive)."""
    episodes = random_episodes(seed, groups=8, size=8)
    for tag in "ab":  # one far above and one far below the others of its tag: both limits bind
        high, low, *_ = (e for e in episodes if e.domain == tag and not e.failed)
        high.rewards[-1] += 100.0
        low.rewards[-1] -= 60.0
    meta = rows_of(episodes, by_step=estimator != "grpo")
    advantages = AdvantageSettings(estimator, "batch", "batch", limits=(-1.0, 3.0))  # type: ignore[arg-type]
    settings = EpisodeSettings(advantages, 0.8, 0.7, 0.4, by_domain=by_tag)

    def scope(episode: Episode) -> list[Episode]:
        return [e for e in episodes if not e.failed and (not by_tag or e.domain == episode.domain)]

    def whole(episode: Episode) -> float:
        return float(np.float32(sum(episode.rewards)))

    expected = []
    for episode in episodes:
        if episode.failed:
            expected += [0.0] if estimator == "grpo" else []
            continue
        of_episode = clipped(normalised(whole(episode), [whole(e) for e in scope(episode)], True, True))
        if estimator == "grpo":
            expected.append(of_episode)
            continue
        for state, value in zip(episode.states, returns(episode, 0.8), strict=True):
            if estimator == "gigpo":
                mates = [e for e in episodes if e.group == episode.group and not e.failed]
                same = [g for e in mates for s, g in zip(e.states, returns(e, 0.8), strict=True) if s == state]
                expected.append(0.7 * of_episode + 0.4 * clipped(normalised(value, same, True, True)))
            else:
                first = estimator == "agentic_reinforce"
                others = [g for e in scope(episode) for g in (returns(e, 0.8)[:1] if first else returns(e, 0.8))]
                expected.append(clipped(normalised(value, others, True, True)))
    if estimator == "grpo":
        got, _ = episode_advantages(meta, settings)
        assert got.min() == -1.0 and got.max() == 3.0
    else:
        got, _ = turn_advantages(meta, settings)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=3e-6)


def test_gigpo_weighs_states_of_its_own_task_as_they_are() -> None:
    episodes = random_episodes(5)
    meta = rows_of(episodes, by_step=True)
    got, _ = turn_advantages(meta, EpisodeSettings(AdvantageSettings("gigpo", None, None), 0.9, 0.7, 0.4))
    kept = [e for e in episodes if not e.failed]
    np.testing.assert_allclose(
        got, [0.7 * sum(e.rewards) + 0.4 * value for e in kept for value in returns(e, 0.9)], atol=2e-6
    )
    # The same state key in two groups: each is compared with its own group only.
    episodes = [Episode(g, "a", [r], [1], False) for g, r in ((0, 1.0), (0, 1.0), (1, 0.0), (1, 0.0))]
    meta = rows_of(episodes, by_step=True)
    got, _ = turn_advantages(meta, EpisodeSettings(AdvantageSettings("gigpo")))
    assert got.tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("by_step", [True, False])
def test_episode_advantages_do_not_depend_on_how_many_rows_an_episode_has(by_step: bool) -> None:
    episodes = random_episodes(7)
    meta = rows_of(episodes, by_step)
    got, _ = episode_advantages(meta, EpisodeSettings(AdvantageSettings("grpo")))
    for row, owner in enumerate(meta.trajectory_ids):
        episode = episodes[owner]
        mates = [e for e in episodes if e.group == episode.group and not e.failed]
        want = 0.0 if episode.failed else normalised(sum(episode.rewards), [sum(e.rewards) for e in mates], True, True)
        assert got[row] == pytest.approx(want, abs=3e-5)


LOOPS = {"gigpo": test_gigpo, "step_reinforce": test_step_reinforce, "agentic_reinforce": test_agentic_reinforce}
"""By estimator, for the test that every one has its loop."""
