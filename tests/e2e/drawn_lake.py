"""A drawn lake in which the answers of examples/tiny-count's model are moves."""

from __future__ import annotations

import random

from roll.envs.base import EnvStep
from roll.envs.frozen_lake import DIRECTIONS, FrozenLake

WORDS = ("1", "2", "3", "4")


class DrawnLake(FrozenLake):
    """1 is Left, 2 Down, 3 Right, 4 Up."""

    def step(self, action: str) -> EnvStep:
        return super().step(DIRECTIONS[WORDS.index(action)] if action in WORDS else "")

    def random_action(self, rng: random.Random) -> str:
        return rng.choice(WORDS)
