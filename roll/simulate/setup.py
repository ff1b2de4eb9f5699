"""Setup of a simulation: one planned run, as numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from roll.configs.plan.batch_plan import BatchPlan, RolloutBounds
from roll.configs.plan.engine_limits import answers_at_once
from roll.configs.plan.layout import RolePlace
from roll.configs.sections.algorithm import AlgorithmConfig

PASSES = {"old_log_probs": "actor_train", "ref_log_probs": "reference", "values": "critic"}  # whose they are

# Lengths of answers, by group.


@dataclass(frozen=True)
class GroupWork:
    """Tokens of a prompt, and of each answer to it: `lengths` int [n]."""

    prompt: int
    lengths: np.ndarray


class Workload(Protocol):
    def group(self, number: int, size: int) -> GroupWork:
        """The same for the same number, whenever it is asked for."""
        ...


@dataclass(frozen=True)
class LogNormal:
    """Lengths with a part that all answers to a prompt share and one of each answer: median x exp(common x g +
    single x g'), cut at `cap`.

    Example: median 2200, common .75, single .58, cap 16384: mean 3280, the longest of 16 about 7350.
    """

    median: float = 2200.0
    common: float = 0.75
    single: float = 0.58
    cap: int = 16_384
    prompt: int = 512
    seed: int = 0

    def group(self, number: int, size: int) -> GroupWork:
        random = np.random.default_rng([self.seed, number])
        common = self.common * random.standard_normal()
        single = self.single * random.standard_normal(size)
        lengths = np.clip(self.median * np.exp(common + single), 1, self.cap).astype(np.int64)
        return GroupWork(self.prompt, lengths)


# What things cost: the constants of a simulation.


@dataclass(frozen=True)
class Costs:
    """Seconds and rates. The defaults are those of an imagined accelerator that serves a model of a few billion
    parameters: good for comparing schedules, not for telling the seconds of yours."""

    decode_s: tuple[tuple[float, float], ...] = ((1, 0.01008), (128, 0.02024))
    """(running answers, seconds of a decode step): straight between the points, and on beyond the last two."""
    decode_context_s: float = 0.0
    """Further seconds of a decode step per token in the KV cache."""
    prefill_tokens_per_s: float = 25_000.0
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
    beside: float = 1.0
    """Factor on the time of a decode step while the trainer or the driver works, and their work while the engines
    sample: above 1 where they share the cores and the memory of a host."""

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


@dataclass(frozen=True)
class Devices:
    """`train` and `infer` devices, of which `common` are both's. The engines have `per_engine` each; `leaving` of them
    stand on common devices: as many as those fill, unless it is given."""

    train: int
    infer: int
    per_engine: int = 1
    common: int = 0
    leaving: int | None = None

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
    answers in an engine at once."""

    bounds: RolloutBounds
    group_size: int
    devices: Devices
    workload: Workload
    costs: Costs = field(default_factory=Costs)
    max_running: int | None = 128
    passes: Mapping[str, int] = field(default_factory=dict)
    trains_critic: bool = False


def setup_of_plan(config: AlgorithmConfig, plan: BatchPlan, workload: Workload, costs: Costs) -> Setup:
    """The simulation of a planned run."""
    layout = plan.layout
    wanted = {
        "values": plan.critic is not None,
        "ref_log_probs": plan.needs_reference,
        "old_log_probs": plan.old_log_probs.source == "pass",
    }
    scorers = {**PASSES, "ref_log_probs": "actor_train" if plan.policy_is_reference else "reference"}
    return Setup(
        bounds=plan.bounds,
        group_size=plan.group_size,
        devices=devices_of(plan),
        workload=workload,
        costs=costs,
        max_running=answers_at_once(config.max_running_requests, config.actor_infer, on_gpus=False),
        passes={name: _num_devices(layout[role]) for name, role in scorers.items() if wanted[name]},
        trains_critic=plan.critic is not None,
    )


def _num_devices(place: RolePlace) -> int:
    """CPU workers count as one each."""
    return len(place.device_ids) or len(place.workers)


def devices_of(plan: BatchPlan) -> Devices:
    """Engines on some device of the trainer leave when it has its turn."""
    train, infer = plan.layout["actor_train"], plan.layout["actor_infer"]
    common, num_infer = len(train.device_ids & infer.device_ids), _num_devices(infer)
    leaving = len(infer.workers) - len(plan.layout.apart("actor_infer", "actor_train"))
    if infer.role in plan.leaving_whole and leaving:
        leaving = len(infer.workers)
    devices = Devices(_num_devices(train), num_infer, num_infer // len(infer.workers), common)
    return devices if leaving == devices.num_leaving else replace(devices, leaving=leaving)
