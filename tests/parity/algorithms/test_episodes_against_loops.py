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


GAMMA, EPISODE_WEIGHT, STEP_WEIGHT = 0.8, 0.7, 0.4


def returns(episode: Episode) -> list[float]:
    places = range(len(episode.rewards))
    return [sum(GAMMA ** (later - k) * episode.rewards[later] for later in places[k:]) for k in places]


def total(episode: Episode) -> float:
    return float(np.float32(sum(episode.rewards)))


def slow(estimator: str, episodes: list[Episode], settings: AdvantageSettings, by_domain: bool) -> list[float]:
    """What each turn of the episodes gets that did not fail; with grpo each episode, those that failed 0."""
    mean, std = (scope not in (None, "none") for scope in (settings.norm_mean_type, settings.norm_std_type))
    low, high = settings.limits or (-math.inf, math.inf)
    alive, found = [e for e in episodes if not e.failed], list[float]()

    def compared(value: float, others: list[float]) -> float:
        centre = sum(others) / len(others)
        out = value - centre if mean else value
        if std and max(others) > min(others):
            out /= math.sqrt(sum((o - centre) ** 2 for o in others) / (len(others) - 1)) + 1e-6
        return min(max(out, low), high)

    for episode in episodes:
        if episode.failed:
            found += [0.0] if estimator == "grpo" else []
            continue
        mates = [e for e in alive if e.group == episode.group]
        scope = mates
        if settings.norm_mean_type == "batch":
            scope = [e for e in alive if not by_domain or e.domain == episode.domain]
        whole = compared(total(episode), [total(e) for e in scope])
        if estimator == "grpo":
            found.append(whole)
            continue
        for state, value in zip(episode.states, returns(episode), strict=True):
            if estimator == "gigpo":
                same = [g for e in mates for s, g in zip(e.states, returns(e), strict=True) if s == state]
                found.append(EPISODE_WEIGHT * whole + STEP_WEIGHT * compared(value, same))
            else:
                first = estimator == "agentic_reinforce"  # compared with first turns alone
                others = [g for e in scope for g in (returns(e)[:1] if first else returns(e))]
                found.append(compared(value, others))
    return found


PER_TURN = ("gigpo", "step_reinforce", "agentic_reinforce")
"""Estimators whose loop is here."""
LIMITS = (-1.0, 3.0)
SCOPES: list[tuple[str | None, str | None, tuple[float, float] | None]] = [
    *((None, None, None), ("default", "default", None), ("default", None, None)),
    *(("group", None, None), ("batch", "batch", None), ("group", "group", None), ("batch", "batch", LIMITS)),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("by_domain", [True, False])
@pytest.mark.parametrize(("mean", "std", "limits"), SCOPES)
@pytest.mark.parametrize("estimator", ["grpo", *PER_TURN])
def test_advantages_equal_the_loop_in_both_sample_forms(
    estimator: str, mean: str | None, std: str | None, limits: tuple[float, float] | None, by_domain: bool, seed: int
) -> None:
    """`limits` are asym_clip's, of the step or of a tag's episodes."""
    if estimator in ("step_reinforce", "agentic_reinforce") and mean == "default":
        mean = std = None
    episodes = random_episodes(seed, groups=8, size=8)
    for tag in "ab":  # one far above and one far below the others of its tag: both limits bind
        high, low, *_ = (e for e in episodes if e.domain == tag and not e.failed)
        high.rewards[-1] += 100.0
        low.rewards[-1] -= 60.0
    advantages = AdvantageSettings(estimator, mean, std, limits=limits)  # type: ignore[arg-type]
    settings = EpisodeSettings(advantages, GAMMA, EPISODE_WEIGHT, STEP_WEIGHT, by_domain=by_domain)
    expected = np.array(slow(estimator, episodes, advantages, by_domain))
    by_steps = {"grpo": (True, False), "agentic_reinforce": (True, False)}.get(estimator, (True,))
    for by_step in by_steps:
        meta = rows_of(episodes, by_step)
        if estimator == "grpo":
            got, _ = episode_advantages(meta, settings)
            want = expected[meta.trajectory_ids]
            assert limits is None or (got.min(), got.max()) == limits
        else:
            got, want = turn_advantages(meta, settings)[0], expected
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=3e-6)


def test_gigpo_compares_a_state_within_its_own_group_alone() -> None:
    episodes = [Episode(g, "a", [r], [1], False) for g, r in ((0, 1.0), (0, 1.0), (1, 0.0), (1, 0.0))]
    got, _ = turn_advantages(rows_of(episodes, by_step=True), EpisodeSettings(AdvantageSettings("gigpo")))
    assert got.tolist() == [0.0, 0.0, 0.0, 0.0]
