"""What is simulated: one run, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roll.configs.plan.rollout_bounds import RolloutBounds
from roll.distributed.scheduler.rollout_core import Keep
from roll.distributed.scheduler.simulate.costs import Costs
from roll.distributed.scheduler.simulate.workload import Workload


@dataclass(frozen=True)
class Devices:
    """`train` and `infer` devices; all of them are the same where they are shared. The engines have `per_engine`
    each."""

    train: int
    infer: int
    per_engine: int = 1
    is_shared: bool = False

    def __post_init__(self) -> None:
        if self.train < 1 or self.per_engine < 1 or self.infer < 1 or self.infer % self.per_engine:
            raise ValueError(
                f"{self.train} devices that train and {self.infer} that sample, {self.per_engine} for each engine: "
                "each needs at least one, and the engines whole ones"
            )
        if self.is_shared and self.train != self.infer:
            raise ValueError(f"shared devices are the same for both, not {self.train} and {self.infer}")

    @property
    def total(self) -> int:
        return self.train if self.is_shared else self.train + self.infer

    @property
    def num_engines(self) -> int:
        return self.infer // self.per_engine

    def __str__(self) -> str:
        return f"shared {self.train}" if self.is_shared else f"{self.train} + {self.infer}"


@dataclass(frozen=True)
class Setup:
    """`passes`: scoring before the training, by field of TokenScores, with the devices that do it. `max_running`:
    answers in an engine at once. `reward_workers`: how many answers are rewarded at once. `deaths`: (seconds, engine
    rank), at which an engine dies."""

    bounds: RolloutBounds
    group_size: int
    devices: Devices
    workload: Workload
    costs: Costs = field(default_factory=Costs)
    max_running: int | None = 128
    reward_workers: int | None = None
    max_replacements: int = 0
    keep: Keep | None = None
    passes: Mapping[str, int] = field(default_factory=dict)
    trains_critic: bool = False
    deaths: tuple[tuple[float, int], ...] = ()
