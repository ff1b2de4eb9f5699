"""What the cases say of an answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from roll.rewards.code.cases import Cases
from roll.rewards.code.extract import Code

OUT_OF_TIME = "no time was left for it"
GRACE_S = 5.0  # from the last word of a process to its end


@dataclass
class Tally:
    """Grows case by case. `shares`: 1 for a case that passed, 0 for one that did not; a file of test functions may have
    passed in part. `first` says why the first one failed. `out_of_time` counts those that a time limit ended."""

    num_cases: int
    stop_early: bool = False  # after the first case that fails: nothing but all of them counts
    shares: list[float] = field(default_factory=list)
    first: str = ""
    out_of_time: int = 0
    compiled: bool = True

    def add(self, share: float, why: str = "", out_of_time: bool = False) -> None:
        if share < 1 and not self.first:
            self.first = f"case {len(self.shares) + 1}: {why}"
        self.shares.append(share)
        self.out_of_time += out_of_time

    def broken(self, why: str, out_of_time: bool = False) -> None:
        """No case can pass."""
        self.first, self.compiled = why, False
        self.out_of_time += out_of_time
        self.shares = [0.0] * self.num_cases

    @property
    def is_done(self) -> bool:
        return len(self.shares) >= self.num_cases or (self.stop_early and min(self.shares, default=1.0) < 1)

    @property
    def passed(self) -> float:
        return sum(self.shares) / self.num_cases


class Budget:
    """The time that all cases of an answer have together."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    @property
    def is_spent(self) -> bool:
        return self.left_s <= 0


class Judge(Protocol):
    def judge(self, code: Code, cases: Cases, stop_early: bool) -> Tally:
        """Raises an exception if it cannot tell."""
        ...


def shorten(text: str | Sequence[str], limit: int = 200) -> str:
    shown = text if isinstance(text, str) else " ".join(text)
    return shown if len(shown) <= limit else shown[:limit] + "..."


def shown(value: object) -> str:
    """A value in few words, whatever it is."""
    try:
        return shorten(repr(value))
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list that is deep
        return "a value that is too long to be shown"
