"""Setup of a simulation: one run, as numbers."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.rollout_core import Keep
from roll.errors import ConfigError
from roll.simulate.workload import Workload
from roll.utils.files import path_info, write_whole

# What things cost: the constants of a simulation, and the file that they are kept in.


@dataclass(frozen=True)
class Costs:
    """Seconds and rates. The defaults are those of an imagined accelerator that serves a model of a few billion
    parameters: good for comparing schedules, not for telling the seconds of yours."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    decode_s: tuple[tuple[float, float], ...] = ((1, 0.01008), (128, 0.02024))
    """(running answers, seconds of a decode step): straight between the points, and on beyond the last two."""
    decode_context_s: float = 0.0
    """Further seconds of a decode step per token in the KV cache."""
    prefill_tokens_per_s: float = 25_000.0
    kv_tokens: int | None = None
    """Tokens that the KV cache of an engine holds; None: as many as come."""
    train_tokens_per_s: float = 9_000.0
    """Tokens that one device trains on, prompts included, with whatever scoring is done in the same phase."""
    train_overhead_s: float = 0.0
    critic_share: float = 1.0
    """Seconds of the critic's updates, as a share of the policy's."""
    score_tokens_per_s: float = 30_000.0
    """Tokens that one device scores, in a pass for old log-probs, a reference or a critic's values."""
    publish_s: float = 2.0
    """Seconds of a publish from the trainer to all engines; each stands still so long."""
    turn_s: float = 5.0
    """Seconds of a turn on shared devices: one role leaves and the other comes."""
    driver_s: float = 0.0
    """Seconds of the driver in each step: making rows, metrics, files."""
    answer_s: float = 0.0
    """Seconds of each request on its way to the engine and back."""
    beside: float = 1.0
    """Factor on the time of a decode step while the trainer or the driver works, and their work while the engines
    sample: above 1 where they share the cores and the memory of a host."""
    restart_s: float = 60.0
    """Seconds until an engine that died serves again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "decode_s", tuple((float(n), float(s)) for n, s in self.decode_s))
        if wrong := next(_problems(self), None):
            raise ValueError(wrong)

    def decode_step_s(self, running: int) -> float:
        """Seconds of an engine step in which this many responses advance by a token.

        Example: with points (1, .01) and (3, .02), two take .015 s and five .03 s.
        """
        points = self.decode_s
        if len(points) == 1 or running <= points[0][0]:
            return points[0][1]
        upper = min(bisect_left(points, (running, 0.0)), len(points) - 1)
        (n0, s0), (n1, s1) = points[upper - 1], points[upper]
        return s0 + (s1 - s0) * (running - n0) / (n1 - n0)


def _problems(costs: Costs) -> Iterator[str]:
    for cost in fields(costs):
        value = getattr(costs, cost.name)
        if cost.name == "decode_s":
            yield from _curve_problems(value)
        elif cost.name == "kv_tokens":
            if value is not None and value < 1:
                yield f"kv_tokens: {value} is not above 0"
        elif cost.name == "beside":
            if not 1 <= value < math.inf:
                yield f"beside: {value} is not at least 1"
        elif not math.isfinite(value) or value < 0 or (value == 0 and cost.name.endswith("_per_s")):
            yield f"{cost.name}: {value} is not {'above' if cost.name.endswith('_per_s') else 'at least'} 0"


def _curve_problems(points: tuple[tuple[float, float], ...]) -> Iterator[str]:
    counts, seconds = [n for n, _ in points], [s for _, s in points]
    if not points or counts != sorted(set(counts)) or counts[0] < 1:
        yield f"decode_s: {counts} are not increasing numbers of running responses from 1 on"
    elif not all(0 < s < math.inf for s in seconds) or seconds != sorted(seconds):
        yield f"decode_s: {seconds} are not increasing seconds above 0"


@dataclass(frozen=True)
class _CostsFile:
    costs: Costs
    source: dict[str, Any] = field(default_factory=dict)


def read_costs(path: Path | str) -> Costs:
    """Reads a calibration file. Raises ConfigError that names the file and the key if it is not one."""
    status = path_info(path)
    if not status.is_file:
        raise ConfigError(f"--calibration {path}: there is no such file. `calibrate --out {path}` writes one.")
    try:
        return TypeAdapter(_CostsFile).validate_json(status.path.read_bytes(), strict=True).costs
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise ConfigError(f"--calibration {path}: {at}: {first['msg']}.") from None


def write_costs(path: Path, costs: Costs, source: Mapping[str, Any]) -> None:
    """`source`: where they come from, for a reader."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"costs": asdict(costs), "source": dict(source)}, indent=1) + "\n")


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
        """All engines sample; `train` of them (default: all) share GPUs with the trainer."""
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
