"""What the step of reinforcement learning is made of, as protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from roll.distributed.scheduler.rollout_core import StepGroups
    from roll.types.rollout import TrajectoryGroup


class GroupSource(Protocol):
    """Whatever gives a step its groups: a scheduler that samples them, or a buffer that another process fills."""

    state_key: str
    """The name of its state in a checkpoint."""

    @property
    def filters(self) -> bool:
        """True if some sampled groups may be dropped."""
        ...

    def collect(self, step: int) -> StepGroups:
        """The groups of this step, which may be waited for."""
        ...

    def judged_again(self, groups: StepGroups, completed: Sequence[TrajectoryGroup], step: int) -> StepGroups:
        """The groups of a step once late rewards are there. `completed`: `groups.sampled`, in its order."""
        ...

    def metrics(self) -> dict[str, float]:
        """Metrics of the groups that were collected last."""
        ...

    def trained(self) -> None:
        """Called when the step has learnt from its groups."""
        ...

    def published(self, version: int) -> None:
        """Called when the engines sample from this version of the weights."""
        ...

    def save(self, directory: Path, ends: bool = False) -> dict[str, Any]:
        """The driver's state, as JSON values, with `state_key` among its keys; files go below the directory."""
        ...

    def restore(self, directory: Path, state: Mapping[str, Any] | None, step: int) -> int:
        """Goes on where `step` steps are done, with what `save` gave under `state_key`. Returns the sampled tokens that
        it goes on with."""
        ...

    def saved(self, steps_done: int) -> None:
        """Called when the checkpoint of so many steps is whole."""
        ...
