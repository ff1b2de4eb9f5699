"""What is simulated: one run, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from roll.configs.plan.rollout_bounds import RolloutBounds
from roll.distributed.scheduler.rollout_core import Keep
from roll.simulate.costs import Costs
from roll.simulate.workload import Workload


@dataclass(frozen=True)
class Devices:
    """`train` and `infer` devices, of which `common` are both's. The engines have `per_engine` each; `leaving` of them
    stand on common devices: as many as those fill, unless it is given."""

    train: int
    infer: int
    per_engine: int = 1
    common: int = 0
    leaving: int | None = None

    def __post_init__(self) -> None:
        if self.train < 1 or self.per_engine < 1 or self.infer < 1 or self.infer % self.per_engine:
            raise ValueError(
                f"{self.train} devices that train and {self.infer} that sample, {self.per_engine} for each engine: "
                "each needs at least one, and the engines whole ones"
            )
        if self.common not in (0, min(self.train, self.infer)):
            raise ValueError(
                f"{self.train} devices that train and {self.infer} that sample have {self.common} in common: none, or "
                "all of the one or the other"
            )

    @classmethod
    def shared(cls, total: int, per_engine: int = 1, train: int | None = None) -> Devices:
        """All sample, and `train` of them (default: all) take turns with the training."""
        train = total if train is None else train
        return cls(train, total, per_engine, train)

    @property
    def total(self) -> int:
        return self.train + self.infer - self.common

    @property
    def num_engines(self) -> int:
        return self.infer // self.per_engine

    @property
    def num_leaving(self) -> int:
        return -(-self.common // self.per_engine) if self.leaving is None else self.leaving

    @property
    def is_shared(self) -> bool:
        """All are both's."""
        return self.train == self.infer == self.common

    def __str__(self) -> str:
        if self.is_shared:
            return f"shared {self.train}"
        return f"{self.train} of {self.infer}" if self.common == self.train else f"{self.train} + {self.infer}"


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
