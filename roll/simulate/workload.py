"""Workload of a simulation: lengths of answers and turns, delays of environments and rewards, by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class GroupWork:
    """`lengths` int [n, turns]: tokens of each answer, by turn, 0 where an attempt has no such turn. `delays_s`
    likewise: of the environment or the reward after it. `observation` tokens come before every turn but the first."""

    prompt: int
    lengths: np.ndarray
    delays_s: np.ndarray
    rewards: np.ndarray
    observation: int = 0


class Workload(Protocol):
    def group(self, number: int, size: int) -> GroupWork:
        """The same for the same number, whenever it is asked for."""
        ...


@dataclass(frozen=True)
class Delays:
    """Log-normal seconds; a median of 0 is none."""

    median_s: float = 0.0
    spread: float = 0.0

    def draw(self, random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        if not self.median_s:
            return np.zeros(shape)
        return self.median_s * np.exp(self.spread * random.standard_normal(shape))


NO_DELAYS = Delays()


@dataclass(frozen=True)
class LogNormal:
    """Lengths with a part that all answers to a prompt share and one of each answer: median x exp(common x g + own x
    g'), cut at `cap`. With several turns each is so long.
    Rewards are 0 or 1; how often a prompt is solved is Beta-distributed (`solved`).

    Example: median 2200, common .75, own .58, cap 16384: mean 3280, the longest of 16 about 7350.
    """

    median: float = 2200.0
    common: float = 0.75
    own: float = 0.58
    cap: int = 16_384
    prompt: int = 512
    turns: int = 1
    observation: int = 0
    delays: Delays = NO_DELAYS
    solved: tuple[float, float] = (1.0, 1.0)
    seed: int = 0

    def group(self, number: int, size: int) -> GroupWork:
        random = np.random.default_rng([self.seed, number])
        common = self.common * random.standard_normal()
        individual = self.own * random.standard_normal((size, self.turns))
        lengths = np.clip(self.median * np.exp(common + individual), 1, self.cap).astype(np.int64)
        chance = random.beta(*self.solved)
        rewards = (random.random(size) < chance).astype(np.float64)
        delays = self.delays.draw(random, lengths.shape)
        return GroupWork(self.prompt, lengths, delays, rewards, self.observation)


@dataclass(frozen=True)
class Recorded:
    """Groups as another run has sampled them, drawn with replacement; attempts of a group too, where it had fewer."""

    groups: Sequence[GroupWork]
    delays: Delays = NO_DELAYS
    seed: int = 0

    def group(self, number: int, size: int) -> GroupWork:
        random = np.random.default_rng([self.seed, number])
        recorded = self.groups[int(random.integers(len(self.groups)))]
        num_found = len(recorded.lengths)
        rows = random.permutation(num_found)[:size] if size <= num_found else random.integers(num_found, size=size)
        lengths = recorded.lengths[rows]
        delays = self.delays.draw(random, lengths.shape)
        return replace(recorded, lengths=lengths, delays_s=delays, rewards=recorded.rewards[rows])
