"""The protocol of a step's parts: what a run may do in a step beside sampling and learning, such as shaping rewards,
mixing in an expert's rows, or raising an alarm.

`RLPipeline.make_parts` lists those of a run. In a step each is called in the order of the list, at these moments:

    collect -> after_rollout -> [before_gather -> gather -> scores -> before_training -> actor_job -> train]
            -> before_publish -> publish -> after_publish

What stands in brackets is done by a process that trains, and only in a step that has rows to train on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from roll.errors import AlgorithmError
from roll.types.batch import TokenScores

if TYPE_CHECKING:
    from roll.configs.plan.batch_plan import BatchPlan
    from roll.configs.sections.algorithm import AlgorithmConfig
    from roll.distributed.executor.clusters import RLClusters
    from roll.distributed.executor.jobs import ScoreSet, TrainJob
    from roll.distributed.executor.step_rows import StepSamples
    from roll.distributed.scheduler.rollout_core import StepGroups
    from roll.types.batch import RowSet
    from roll.types.rollout import TrajectoryGroup
    from roll.utils.timing import Timer

Metrics = Mapping[str, float]

SCORE_NAMES = tuple(each.name for each in fields(TokenScores))
"""The names that scores can travel under to the ranks that train."""


class GroupSource(Protocol):
    """Source of a step's groups: a scheduler that samples them, or a buffer that another process fills."""

    state_key: str
    """The name of its state in a checkpoint."""

    @property
    def filters(self) -> bool:
        """True if some sampled groups may be dropped."""
        ...

    def collect(self, step: int) -> StepGroups: ...

    def rescore(self, groups: StepGroups, completed: Sequence[TrajectoryGroup], step: int) -> StepGroups:
        """The groups of a step once late rewards are there. `completed`: `groups.sampled`, in its order."""
        ...

    def metrics(self) -> dict[str, float]: ...

    def published(self, version: int) -> None:
        """Called when the engines sample from this version of the weights."""
        ...

    def save(self, directory: Path) -> dict[str, Any]:
        """The driver's state, as JSON values, with `state_key` among its keys; files go below the directory."""
        ...

    def restore(self, directory: Path, state: Mapping[str, Any] | None, step: int, /) -> int:
        """Goes on where `step` steps are done, with what `save` gave. Returns the sampled tokens that it goes on
        with."""
        ...

    def saved(self, steps_done: int) -> None:
        """Called when the checkpoint of so many steps is whole."""
        ...


@dataclass(frozen=True)
class StepContext:
    """State of a step, counted from 0, that a part may use: `clusters.placement.hold` for what it needs on devices,
    `timer` for phases; `engine_version` is that of the weights that engines have now."""

    step: int
    plan: BatchPlan
    clusters: RLClusters
    source: GroupSource
    timer: Timer
    temperature: float
    engine_version: int


@dataclass(frozen=True)
class ActorJob:
    """The policy's training in a step: the job, rows of an expert beside those of the step, and metrics of them."""

    job: TrainJob
    rows: RowSet | None = None
    metrics: Metrics = field(default_factory=dict)


class StepPart:
    """One part of a step. Every method has a default that does nothing: a part overrides those that it needs."""

    state_key: ClassVar[str] = ""
    """The name of its state in a checkpoint; empty: it has none."""

    @property
    def filters(self) -> bool:
        """True if `after_rollout` may drop groups."""
        return False

    def prepare(self, config: AlgorithmConfig, plan: BatchPlan) -> None:
        """Reads what it needs before any process starts. Raises ConfigError for what is wrong with it."""

    def resume(self, saved: Any, path: Path) -> None:
        """Goes on from the checkpoint at `path`, before any process starts. `saved`: what `state` gave, None in a
        checkpoint that does not know this part. Raises ConfigError where that does not fit this run."""

    def state(self) -> Any:
        """The JSON value that a checkpoint keeps under `state_key`."""
        return None

    def after_rollout(self, at: StepContext, groups: StepGroups) -> tuple[StepGroups, Metrics]:
        """The groups as the step goes on with them, and metrics. Called in every mode that takes steps."""
        return groups, {}

    def before_gather(self, at: StepContext, trained: Sequence[TrajectoryGroup]) -> None:
        """Called with the groups that are trained on, as long as they have their tokens."""

    def scores(self, at: StepContext, samples: StepSamples) -> Mapping[str, ScoreSet]:
        """Return scores that the policy's update reads beside credit, by field of TokenScores."""
        return {}

    def before_training(self, at: StepContext, scores: Mapping[str, ScoreSet]) -> Metrics:
        """Called when log-probs and values of the rows are there, before anything learns. Returns metrics."""
        return {}

    def actor_job(self, at: StepContext, job: ActorJob) -> ActorJob:
        """The policy's job as it is trained. Called where the policy learns in this step. A part whose loss has another
        term for rows without advantage sets `zero_gradient_rows` of the TrainJob to None."""
        return job

    def before_publish(self, at: StepContext, metrics: Metrics) -> None:
        """Called with the step's metrics before its weights go to the engines, in every mode that takes steps."""

    def after_publish(self, at: StepContext, metrics: Metrics) -> Metrics:
        """Called with the same metrics, and those of the update, once it is over. Returns more of them."""
        return {}


class StepParts:
    """All parts of a run, in their order."""

    def __init__(self, parts: Sequence[StepPart]):
        self._parts = tuple(parts)

    def __iter__(self) -> Iterator[StepPart]:
        return iter(self._parts)

    @property
    def filters(self) -> bool:
        return any(part.filters for part in self._parts)

    def prepare(self, config: AlgorithmConfig, plan: BatchPlan) -> None:
        for part in self._parts:
            part.prepare(config, plan)

    def resume(self, saved: Mapping[str, Any], path: Path) -> None:
        """Each with its own state. `saved`: the driver's state in the checkpoint at `path`."""
        for part in self._parts:
            part.resume(saved.get(part.state_key), path)

    def state(self) -> dict[str, Any]:
        return {part.state_key: part.state() for part in self._parts if part.state_key}

    def after_rollout(self, at: StepContext, groups: StepGroups) -> tuple[StepGroups, dict[str, float]]:
        metrics: dict[str, float] = {}
        for part in self._parts:
            groups, more = part.after_rollout(at, groups)
            metrics |= more
        return groups, metrics

    def before_gather(self, at: StepContext, trained: Sequence[TrajectoryGroup]) -> None:
        for part in self._parts:
            part.before_gather(at, trained)

    def scores(self, at: StepContext, samples: StepSamples, taken: Collection[str]) -> dict[str, ScoreSet]:
        """Scores by name. Raises AlgorithmError for a name that ranks do not know, and for one that is `taken` or
        given twice: a rank would find out in the middle of an update."""
        joined: dict[str, ScoreSet] = {}
        for part in self._parts:
            for name, score in part.scores(at, samples).items():
                who = f"{type(part).__name__}.scores: {name!r}"
                if name not in SCORE_NAMES:
                    raise AlgorithmError(f"{who} is no field of TokenScores. Its fields: {', '.join(SCORE_NAMES)}.")
                if name in taken or name in joined:
                    raise AlgorithmError(f"{who} is there already: the step or a part before this one gives it.")
                joined[name] = score
        return joined

    def before_training(self, at: StepContext, scores: Mapping[str, ScoreSet]) -> dict[str, float]:
        return _joined(part.before_training(at, scores) for part in self._parts)

    def actor_job(self, at: StepContext, job: TrainJob) -> ActorJob:
        made = ActorJob(job)
        for part in self._parts:
            made = part.actor_job(at, made)
        return made

    def before_publish(self, at: StepContext, metrics: Metrics) -> None:
        for part in self._parts:
            part.before_publish(at, metrics)

    def after_publish(self, at: StepContext, metrics: Metrics) -> dict[str, float]:
        return _joined(part.after_publish(at, metrics) for part in self._parts)


def _joined(joined: Iterator[Metrics]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for more in joined:
        metrics |= more
    return metrics
