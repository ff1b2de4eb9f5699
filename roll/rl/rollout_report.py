"""`runner_state_report_interval`: what the rollout is doing, in the log every so many seconds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from roll.types.rollout import Generate, Rollouter, Task, TrajectoryGroup

logger = logging.getLogger(__name__)


class RolloutReport:
    """Knows the groups that are being played. While there are any a line says so every `interval_s` seconds.
    `loads`: the answers that each engine owes, by rank."""

    def __init__(self, interval_s: float, loads: Callable[[], Mapping[int, int]]):
        self._interval_s, self._loads = interval_s, loads
        self._begun: dict[int, float] = {}  # by group, the oldest first
        self._num_ended = 0  # since the last line
        self._alarm: asyncio.TimerHandle | None = None

    def begins(self, group_id: int) -> None:
        loop = asyncio.get_running_loop()
        self._begun[group_id] = loop.time()
        if self._alarm is None:
            self._alarm = loop.call_later(self._interval_s, self._say)

    def ends(self, group_id: int) -> None:
        del self._begun[group_id]
        self._num_ended += 1

    def line(self, now: float) -> str:
        """Example: rollout: 3 groups under way, 5 ended in the last 10 s; the oldest, group 7, began 12 s ago; answers
        in flight by engine: 0: 4, 1: 6"""
        oldest, began = next(iter(self._begun.items()))
        verb = f"{len(self._begun)} groups under way, {self._num_ended} ended in the last {self._interval_s:g} s"
        text = f"rollout: {verb}; the oldest, group {oldest}, began {now - began:.0f} s ago"
        loads = self._loads()
        if not any(loads.values()):
            return text
        return f"{text}; answers in flight by engine: {', '.join(f'{rank}: {n}' for rank, n in sorted(loads.items()))}"

    def _say(self) -> None:
        self._alarm = None
        if self._begun:
            loop = asyncio.get_running_loop()
            logger.info("%s", self.line(loop.time()))
            self._alarm = loop.call_later(self._interval_s, self._say)
        self._num_ended = 0


@dataclass(frozen=True)
class ReportedRollouter:
    """A rollouter whose groups are in the report."""

    inner: Rollouter
    report: RolloutReport

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        self.report.begins(group_id)
        try:
            return await self.inner.run_group(task, group_id, step, generate)
        finally:
            self.report.ends(group_id)
