"""Plan that follows from the settings of any run before a process exists: where its roles sit, and the arithmetic of
those that learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from roll.configs.plan.layout import Layout, parallel_sizes, place_roles
from roll.configs.plan.train_plan import Rounding, TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.utils.text import counted

if TYPE_CHECKING:
    from roll.configs.sections.run import RunConfig


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


def run_length(config: RunConfig) -> str:
    """Example: "20 steps", or "3 epochs (steps by the number of rows)"."""
    if not config.counts_epochs:
        return counted(config.max_steps, "step")
    epochs = f"{config.num_train_epochs:g}"
    return f"{epochs} {'epoch' if epochs == '1' else 'epochs'} (steps by the number of rows)"


def schedule_warnings(plan: RunPlan) -> Iterator[str]:
    """Warns of a warm-up that outlasts the run, once the number of steps is known."""
    for name, train in plan.trains.items():
        if train.warmup_updates >= train.total_updates > 0:
            yield (
                f"{name}.training_args: the warm-up of {train.warmup_updates} updates is not over when the run ends "
                f"after {train.total_updates}."
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
