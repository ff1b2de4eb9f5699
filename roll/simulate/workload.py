"""Workload of a simulation: lengths of answers by group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class GroupWork:
    """Tokens of a prompt, and of each answer to it: `lengths` int [n]."""

    prompt: int
    lengths: np.ndarray


class Workload(Protocol):
    def group(self, number: int, size: int) -> GroupWork:
        """The same for the same number, whenever it is asked for."""
        ...


@dataclass(frozen=True)
class LogNormal:
    """Lengths with a part that all answers to a prompt share and one of each answer: median x exp(common x g +
    single x g'), cut at `cap`.

    Example: median 2200, common .75, single .58, cap 16384: mean 3280, the longest of 16 about 7350.
    """

    median: float = 2200.0
    common: float = 0.75
    single: float = 0.58
    cap: int = 16_384
    prompt: int = 512
    seed: int = 0

    def group(self, number: int, size: int) -> GroupWork:
        random = np.random.default_rng([self.seed, number])
        common = self.common * random.standard_normal()
        single = self.single * random.standard_normal(size)
        lengths = np.clip(self.median * np.exp(common + single), 1, self.cap).astype(np.int64)
        return GroupWork(self.prompt, lengths)
