"""What becomes of each group and when, for a timeline."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

from roll.distributed.scheduler.rollout_core import StepGroups
from roll.types.rollout import Generate, Generation, TrajectoryGroup
from roll.utils.spans import Spans

Run = Callable[[Generate], Coroutine[Any, Any, TrajectoryGroup]]


class GroupLives:
    """Marks the stages of groups that the driver sees; an engine marks where it begins one. Where an environment asks
    the engines by itself, nobody here knows when a group was generated."""

    def __init__(self, spans: Spans):
        self._spans = spans
        self._taken: list[int] = []  # by a step whose weights are not published

    async def play(self, number: int, engines: Generate, run: Run) -> TrajectoryGroup:
        """What `run` makes, given a way to the engines."""
        if not self._spans.is_on:
            return await run(engines)
        self._spans.mark(number, "admitted")

        @wraps(engines)  # a rollouter looks at what it takes
        async def generate(*arguments: Any) -> Sequence[Generation]:
            generations = await engines(*arguments)
            self._spans.mark(number, "generated")
            return generations

        group = await run(generate)
        self._spans.mark(number, "scored")
        return group

    def taken(self, groups: StepGroups) -> None:
        for group in groups.dropped:
            self._spans.mark(group.group_id, "dropped")
        self._taken += [group.group_id for group in groups.kept]
        self._mark_taken("taken")

    def trained(self) -> None:
        self._mark_taken("trained")

    def published(self) -> None:
        self._mark_taken("published")
        self._taken = []

    def _mark_taken(self, stage: str) -> None:
        for number in self._taken:
            self._spans.mark(number, stage)
