"""Frozen lakes that fail in every way there is, for whole runs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from roll.envs.base import EnvStep
from roll.envs.frozen_lake import FrozenLake


class Misbehaving(FrozenLake):
    """At its second step it raises, hangs for good, is slow, or kills the process it lives in. `once`: a file that is
    made when it fails, and keeps it from failing again."""

    def __init__(self, how: str, once: str | None = None):
        super().__init__()
        self.how, self.once = how, once
        self.num_steps = 0

    def step(self, action: str) -> EnvStep:
        self.num_steps += 1
        if self.num_steps == 2 and self._may_fail():
            if self.how == "raises":
                raise ValueError("the ice broke")
            if self.how == "kills":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1e6 if self.how == "hangs" else 0.5)
        return super().step(action)

    def _may_fail(self) -> bool:
        if self.once is None:
            return True
        try:
            Path(self.once).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
