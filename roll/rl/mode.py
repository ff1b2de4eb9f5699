"""Part of a run that a process does: the whole, sampling (explore), training (train), or measuring (bench)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.rl.parts import GroupSource
from roll.rl.publishing import Publisher
from roll.run.loop import RunMode
from roll.run.saving.checkpoint import Checkpoint
from roll.run.tracking.local import MetricHistory
from roll.types.rollout import Rollouter, Task
from roll.utils.imports import resolve


class RLMode(RunMode):
    """A process that samples, trains and measures (`mode: both`). Others override what they do in another way."""

    hands_over: ClassVar[bool] = False
    """True if another process trains on what this one samples."""

    def __init__(self, config: AlgorithmConfig, is_stopped: Callable[[], bool]):
        """`is_stopped`: True once the run is to end, so that nothing is waited for any more."""
        self.config, self.is_stopped = config, is_stopped

    def open(self) -> None:
        """Opens what connects this process with the others of its run."""

    def close(self) -> None:
        """Closes it again."""

    def check_tasks(self, tasks: Iterable[Task]) -> None:
        """Raises ConfigError for tasks that another process of the run could not read."""

    def prepare(self, config: AlgorithmConfig, plan: BatchPlan, checkpoint: Checkpoint | None) -> AlgorithmConfig:
        """Return the settings to use from here on; called once data and length of the run are known."""
        return config

    def publisher(self, config: AlgorithmConfig) -> Publisher:
        """Brings trained weights to the engines, or to the other process."""
        return Publisher(config.actor_train.model_update_frequency, config.is_async)

    def source(self, filters: bool) -> GroupSource | None:
        """Groups of another process; None where this one samples. `filters`: some of them are dropped."""
        return None

    def rollouter(self, rollouter: Rollouter, is_settled: bool) -> Rollouter:
        """Return the rollouter that makes the groups. `is_settled`: nothing is decided about them later."""
        return rollouter

    def begin(self, steps_done: int, source: GroupSource | None, history: MetricHistory) -> None:
        """Brings groups and metrics to where the steps begin, if no checkpoint does."""

    def hand_over(self, step: int, groups: StepGroups) -> None:
        raise NotImplementedError


MODES: Mapping[str, str] = {
    "both": "roll.rl.mode:RLMode",
    "explore": "roll.features.experience.modes:ExploreMode",
    "train": "roll.features.experience.modes:TrainMode",
    "bench": "roll.rl.bench:BenchMode",
}
"""Classes by the value of `mode`; a run imports its own."""


def make_mode(config: AlgorithmConfig, is_stopped: Callable[[], bool]) -> RLMode:
    made: Any = resolve(MODES[config.mode])
    return made(config, is_stopped)
