"""Groups that are trained on more than once: when they come back, and which go first.

The functions are those of Trinity-RFT's replay buffer (`priority_fn`), by their names there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roll.configs.sections.experience import ReuseConfig
from roll.rl.experience.buffer import Entry


@dataclass(frozen=True)
class Use:
    """A group that was trained on `times`, last in step `step`, which ended at `ended` on the reader's clock."""

    entry: Entry
    times: int
    step: int
    ended: float


@dataclass(frozen=True)
class Reuse:
    """The rules of `experience.reuse`."""

    keys: ReuseConfig
    seed: int

    @property
    def limit(self) -> int:
        """Trainings of one group; 0: any number."""
        return self.keys.use_limit if self.keys.priority == "decay_limit_randomization" else 0

    def comes_back(self, use: Use) -> bool:
        """False if it is never trained on again, however young it is."""
        return not self.limit or use.times < self.limit

    def is_rested(self, use: Use, now: float) -> bool:
        return now - use.ended >= self.keys.cooldown_s

    def in_order(self, candidates: Sequence[tuple[Entry, int]], step: int) -> list[Entry]:
        """Entries with the times that they were trained on, the highest priority first; of equal ones the first in the
        data. A group that nothing sampled has version -1.

        Example: linear_decay with decay 2: version 5 after one training (3) comes behind version 4 after none (4).
        """
        priorities = [entry.oldest_version - self.keys.decay * times for entry, times in candidates]
        if self.keys.priority == "decay_limit_randomization" and self.keys.sigma:
            random = np.random.default_rng([self.seed, step])
            noise = random.normal(0.0, self.keys.sigma, len(candidates))
            priorities = [priority + more for priority, more in zip(priorities, noise.tolist(), strict=True)]
        ranked = sorted(zip(priorities, candidates, strict=True), key=lambda pair: (-pair[0], pair[1][0]))
        return [entry for _, (entry, _) in ranked]
