"""The validation of a run that samples: all its sets, answered at once and measured apart."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from roll.rl.evaluation import mean_of_sets, validation_metrics
from roll.types.rollout import Generate, Rollouter, Task, TrajectoryGroup


@dataclass(frozen=True)
class ValidationSet:
    """Tasks with the way in which they are answered. The set that has no `name` is the run's main one."""

    name: str
    tasks: Sequence[Task]
    rollouter: Rollouter
    pass_at: Sequence[int] = ()


class Validation:
    """All sets of a run. Seeds do not depend on the step: changes are the model's."""

    def __init__(self, sets: Sequence[ValidationSet], most_at_once: int):
        """`most_at_once`: groups in flight, over all sets."""
        self._sets = tuple(sets)
        self._most_at_once = most_at_once

    async def answer(self, generate: Generate) -> list[TrajectoryGroup]:
        """The groups of all sets, one set after the other."""
        room = asyncio.Semaphore(self._most_at_once)

        async def answered(rollouter: Rollouter, index: int, task: Task) -> TrajectoryGroup:
            async with room:
                return await rollouter.run_group(task, index, 0, generate)

        return await asyncio.gather(
            *(answered(one.rollouter, index, task) for one in self._sets for index, task in enumerate(one.tasks))
        )

    def by_set(self, groups: Sequence[TrajectoryGroup]) -> dict[str, list[TrajectoryGroup]]:
        """What `answer` gave, by the names of the sets."""
        rest = iter(groups)
        return {one.name: list(islice(rest, len(one.tasks))) for one in self._sets}

    def metrics(self, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
        """Those of each set under its name."""
        found: dict[str, float] = {}
        answered = self.by_set(groups)
        for one in self._sets:
            found |= validation_metrics(answered[one.name], one.name, one.pass_at)
        if "" in answered:
            return found
        return found | mean_of_sets({name: found[f"val/{name}/reward_mean"] for name in answered})
