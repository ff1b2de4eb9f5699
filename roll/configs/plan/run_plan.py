"""Plan that follows from the settings of any run before a process exists: where its roles sit, and the arithmetic of
those that learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from roll.configs.plan.layout import Layout, parallel_sizes, place_roles
from roll.configs.sections.cluster import WorkerConfig

if TYPE_CHECKING:
    from roll.configs.sections.run import RunConfig

Rounding = Literal["whole", "up", "down", "nearest"]


@dataclass(frozen=True)
class TrainPlan:
    """The arithmetic of one role that learns. A sample is a row, or `rows_together` of them; counts are of rows.

    Example: 32 prompts x 8 answers = 256 samples; micro batch 16, accumulation 2, 2 ranks: 64 samples per update, 4
    updates per step and epoch.
    """

    role: str
    samples_per_step: int
    micro_batch_size: int
    accumulation: int
    dp_size: int
    epochs: int
    steps: int  # steps of the run in which this role learns
    warmup_updates: int
    infer_batch_size: int
    max_grad_norm: float = 1.0  # 0: gradients are not clipped
    rounding: Rounding = "whole"  # of samples that do not split into updates; whole: they have to
    waits: int = 0  # steps of the run before it learns
    warmup_ratio: float = 0.0  # where warmup_updates follows from it
    optimizer_waits: bool = False  # its states are in host memory while gradients are computed
    sequence_size: int = 1  # ranks that take the same rows and share every sequence
    rows_together: int = 1  # in one micro batch

    @property
    def samples_per_update(self) -> int:
        return self.micro_batch_size * self.accumulation * self.dp_size

    @property
    def splits_evenly(self) -> bool:
        return self.samples_per_step % self.samples_per_update == 0

    @property
    def updates_per_epoch(self) -> int:
        """Example: 96 samples, 64 per update: 2 updates when rounded up, 1 when rounded down."""
        exact = self.samples_per_step / self.samples_per_update
        match self.rounding:
            case "whole":
                return math.floor(exact)
            case "up":
                return math.ceil(exact)
            case "down":
                return max(1, math.floor(exact))
            case "nearest":
                return max(1, round(exact))

    @property
    def updates_per_step(self) -> int:
        return self.updates_per_epoch * self.epochs

    @property
    def total_updates(self) -> int:
        """Length of the learning-rate schedule."""
        return self.updates_per_step * self.steps

    def over(self, run_steps: int) -> TrainPlan:
        """Return the plan in a run of so many steps. Example: with 5 steps to wait, it learns in 15 of 20."""
        plan = replace(self, steps=max(0, run_steps - self.waits))
        if not self.warmup_ratio:
            return plan
        return replace(plan, warmup_updates=math.ceil(self.warmup_ratio * plan.total_updates))


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run of any kind; a run with rollouts plans more (`BatchPlan`). Lengths are in tokens."""

    layout: Layout
    trains: Mapping[str, TrainPlan]  # of the roles that learn
    scoring: frozenset[str]  # roles that compute log-probs or values of given rows
    trained_length: int  # of the longest row that is trained on
    longest_row: int  # that the run makes at all
    bucket_bytes: int = 0  # of a weight update; 0: weights go nowhere
    most_answers: int | None = None  # in flight in one engine; None: as many as suit it (`answers_at_once`)
    background: frozenset[str] = frozenset()  # roles that work whenever their devices are free
    leaving_whole: frozenset[str] = frozenset()  # of these: all their engines leave devices where one has to
    keeps_kv: bool = False  # of answers in flight when weights change
    adapter_rank: int | None = None  # of LoRA adapters that engines get by themselves; None: merged weights
    exact: bool = False  # log-probs are the same bits in trainer and engine
    reports_routes: bool = False  # engines do, of the experts that tokens went to
    fixed_weights: bool = False  # engines keep those that they were started with
    shows_pictures: bool = False  # some rows do that are trained on; known when the data are read
    validates_pictures: bool = False  # some rows do that are answered only

    def over(self, run_steps: int) -> Self:
        """The same for a run of so many steps."""
        return replace(self, trains={name: train.over(run_steps) for name, train in self.trains.items()})


def build_run_plan(config: RunConfig, scoring: frozenset[str] = frozenset()) -> RunPlan:
    """The plan of a checked configuration whose steps make one update each of every role that learns. Roles that do
    nothing but score do so; `scoring`: those that learn and score as well."""
    scorers = {name for name in config.model_roles if config.roles[name].use == "score"}
    return RunPlan(
        layout=plan_layout(config),
        trains={name: train_plan(config, name, worker) for name, worker in config.learning_roles.items()},
        scoring=scoring | scorers,
        trained_length=config.trained_length,
        longest_row=config.longest_row,
    )


def plan_layout(config: RunConfig) -> Layout:
    roles = {**config.model_roles, **config.cpu_roles}
    return place_roles(roles, config.num_nodes, config.num_gpus_per_node)


def train_plan(
    config: RunConfig,
    role: str,
    worker: WorkerConfig,
    samples_per_step: int | None = None,
    epochs: int = 1,
    waits: int = 0,
    rounding: Rounding = "whole",
) -> TrainPlan:
    """The plan of a role that learns. `samples_per_step`: as many as one update takes, if not given; `waits`: steps of
    the run before it learns."""
    args, sizes = worker.training_args, parallel_sizes(worker)
    dp_size, together = sizes.data, config.roles[role].rows_together
    micro_batch_size = args.per_device_train_batch_size * together
    update = micro_batch_size * args.gradient_accumulation_steps * dp_size
    plan = TrainPlan(
        role=role,
        samples_per_step=update if samples_per_step is None else samples_per_step,
        micro_batch_size=micro_batch_size,
        accumulation=args.gradient_accumulation_steps,
        dp_size=dp_size,
        epochs=epochs,
        steps=0,
        warmup_updates=args.warmup_steps,
        infer_batch_size=worker.infer_batch_size,
        waits=waits,
        warmup_ratio=0.0 if args.warmup_steps else args.warmup_ratio,
        max_grad_norm=config.grad_norm_of(role, worker),
        rounding=rounding,
        optimizer_waits=config.is_offload_optimizer_states_in_train_step,
        sequence_size=sizes.sequence,
        rows_together=together,
    )
    return plan.over(config.max_steps)
