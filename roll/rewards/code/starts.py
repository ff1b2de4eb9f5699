"""Starts of the processes that judge an answer, and whose doing it is when one ends early.

A process says when it has begun, before it runs anything of the answer. What ends before is the machine's doing: it is
started again, and after a few times there is no verdict. What ends later is the answer's doing, and it has failed.
Since the word comes first, and each process is gone before the next starts, no answer can choose between the two.
"""

from __future__ import annotations

from typing import Literal

from roll.rewards.code.verdict import Tally, shorten
from roll.utils.sandbox.process import SandboxError

STARTS = 3  # in a row, of which none got to the answer
LOADS = 2  # that end while the answer is loaded: a machine without memory does that, too

Stage = Literal["starting", "loading", "running"]


class Starts:
    def __init__(self) -> None:
        self.stage: Stage = "starting"
        self._any_begun = False
        self._failed_starts = self._failed_loads = 0

    def start(self) -> None:
        self.stage = "starting"

    def begun(self) -> None:
        self.stage, self._any_begun, self._failed_starts = "loading", True, 0

    def loaded(self) -> None:
        self.stage = "running"

    def ended(self, tally: Tally, why: str) -> bool:
        """What to do about an end; whether it was before the answer was there. Raises SandboxError."""
        if self.stage == "starting":
            self._failed_starts += 1
            if self._failed_starts >= STARTS:
                raise SandboxError(f"ended {STARTS} times before anything of the answer ran: {shorten(why, 500)}")
        elif self.stage == "loading":
            self._failed_loads += 1
            if self._failed_loads >= LOADS:
                tally.broken(f"ended while it was loaded: {why}")
        return self.stage != "running"

    def out_of_time(self, tally: Tally, budget_is_spent: bool) -> bool:
        """Likewise of one that took too long. Of an answer that has used up its time itself a late start is no
        failure."""
        if self.stage == "starting" and not (budget_is_spent and self._any_begun):
            return self.ended(tally, "it did not start in time")
        if self.stage == "loading":
            tally.broken("took too long to load", out_of_time=True)
            return True
        return False

    def check_begun(self) -> None:
        """Raises SandboxError if all the time is over, and nothing of the answer ran."""
        if not self._any_begun:
            raise SandboxError("the sandbox did not start within total_time_s: the machine has too much to do")
