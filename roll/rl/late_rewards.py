"""Rewards that are given after the rollout, by models on devices: a reward model, or a judge with an engine of its own.

While a step is sampled, its trajectories wait for such a reward: it is not a number, and they have not failed. When the
rollout is over the scorers take turns, each with its devices for itself (`Placement.hold`): what shares them makes room
first, on disjoint devices nothing moves.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Protocol

from roll.distributed.executor.placement import Claim
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.rl.parts import Metrics, StepContext, StepPart
from roll.types.rollout import TrajectoryGroup


class Hold(Protocol):
    """`Placement.hold`."""

    def __call__(self, *claims: Claim) -> AbstractContextManager[None]: ...


class GroupScorer(Protocol):
    """Rewards the attempts of whole groups, on the driver's thread."""

    @property
    def claims(self) -> Sequence[Claim]: ...

    def score(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        """These groups, each attempt with its reward, or why it has none. What fails as a whole ends the run."""
        ...


class LateRewards(StepPart):
    """The scorers of a run by domain; several domains may share one. Most runs have none."""

    def __init__(
        self, scorers: Mapping[str, GroupScorer] = MappingProxyType({}), hold: Hold = lambda *claims: nullcontext()
    ):
        self._scorers, self._hold = dict(scorers), hold

    @property
    def is_empty(self) -> bool:
        """True if every reward is there when its group is."""
        return not self._scorers

    def use(self, scorers: Mapping[str, GroupScorer], hold: Hold) -> None:
        self._scorers, self._hold = dict(scorers), hold

    def after_rollout(self, at: StepContext, groups: StepGroups) -> tuple[StepGroups, Metrics]:
        if self.is_empty:
            return groups, {}
        with at.timer("reward"):
            return at.source.rescore(groups, self.complete(groups.sampled), at.step), {}

    def complete(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        done = list(groups)
        for scorer in dict.fromkeys(self._scorers.values()):
            places = [i for i, group in enumerate(groups) if self._scorers.get(group.task.domain) is scorer]
            if not places:
                continue
            with self._hold(*scorer.claims):
                scored = scorer.score([groups[i] for i in places])
            for i, group in zip(places, scored, strict=True):
                done[i] = group
        return done


def waits(group: TrajectoryGroup) -> bool:
    """True if attempts of this group have neither a reward nor failed."""
    return any(math.isnan(t.reward) and t.failure is None for t in group.trajectories)
