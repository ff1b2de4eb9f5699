"""What the step asks for its groups where they are sampled elsewhere: a buffer in the place of a scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.distributed.scheduler.rollout_core import StepGroups
from roll.rl.experience.reader import ExperienceReader
from roll.types.rollout import TrajectoryGroup


class ReadGroups:
    """The groups of a reader, as a step's source."""

    state_key = "experience"

    def __init__(self, reader: ExperienceReader, filters: bool):
        """`filters`: the explorer drops some groups."""
        self._reader = reader
        self.filters = filters
        self._metrics: dict[str, float] = {}

    def collect(self, step: int) -> StepGroups:
        taken = self._reader.take(step)
        self._metrics = taken.metrics()
        return taken.groups

    def judged_again(self, groups: StepGroups, completed: Sequence[TrajectoryGroup], step: int) -> StepGroups:
        """Their rewards are there."""
        return groups

    def metrics(self) -> dict[str, float]:
        """Metrics of the step whose groups were collected last."""
        return self._metrics

    def save(self, directory: Path, ends: bool = False) -> dict[str, Any]:
        return {"data": {}, "experience": self._reader.state()}

    def restore(self, directory: Path, state: Mapping[str, Any] | None, step: int) -> int:
        self._reader.restore(state or {}, step)
        return 0

    def saved(self, steps_done: int) -> None:
        self._reader.saved(steps_done)

    def trained(self) -> None:
        """Does nothing: no group waits for the training."""

    def published(self, version: int) -> None:
        """Nor for this."""
