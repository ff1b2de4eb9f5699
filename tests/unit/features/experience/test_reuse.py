"""Which groups come back, and in which order."""

from __future__ import annotations

import numpy as np
import pytest

from roll.configs.sections.experience import ReuseConfig
from roll.features.experience.directory import Entry
from roll.features.experience.reader import Reuse, Use


def reuse(**keys: object) -> Reuse:
    return Reuse(ReuseConfig.model_validate({"enable": True, **keys}), seed=3)


def test_a_use_takes_decay_from_the_version() -> None:
    candidates = [
        (Entry(0, 0, oldest_version=5), 1),
        (Entry(0, 1, oldest_version=4), 0),
        (Entry(0, 2, oldest_version=9), 3),
    ]
    ranked = reuse(decay=2.0).in_order(candidates, 9)
    by_hand = sorted(candidates, key=lambda pair: (-(pair[0].oldest_version - 2.0 * pair[1]), pair[0].number))
    assert [entry.number for entry in ranked] == [entry.number for entry, _ in by_hand] == [1, 0, 2]


def test_priorities_noise_and_limits_are_those_of_seed_and_step() -> None:
    candidates = [
        (Entry(1, 4, oldest_version=2), 0),
        (Entry(0, 9, oldest_version=2), 0),
        (Entry(1, 3, oldest_version=2), 0),
    ]
    assert [entry.number for entry in reuse().in_order(candidates, 0)] == [9, 3, 4]
    keys = reuse(priority="decay_limit_randomization", sigma=1.5)
    candidates = [(Entry(0, n, oldest_version=0), 0) for n in range(400)]
    noise = np.random.default_rng([3, 7]).normal(0.0, 1.5, 400)
    by_hand = sorted(range(400), key=lambda n: -noise[n])
    assert [entry.number for entry in keys.in_order(candidates, 7)] == by_hand
    assert [entry.number for entry in keys.in_order(candidates, 8)] != by_hand
    assert noise.std() == pytest.approx(1.5, abs=0.2)
    used = Use(Entry(0, 0), times=3, step=2, ended=10.0)
    assert reuse(use_limit=3).comes_back(used), "linear_decay has no limit"
    limited = reuse(priority="decay_limit_randomization", use_limit=3)
    assert not limited.comes_back(used)
    assert limited.comes_back(Use(Entry(0, 0), times=2, step=2, ended=10.0))
    assert reuse(priority="decay_limit_randomization", use_limit=0).comes_back(used)
    used = Use(Entry(0, 0), times=1, step=2, ended=10.0)
    keys = reuse(cooldown_s=5.0)
    assert [keys.is_rested(used, now) for now in (10.0, 14.9, 15.0)] == [False, False, True]
