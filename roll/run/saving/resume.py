"""What is wrong with going on from a checkpoint under this configuration: found before any process is started."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from roll.configs.plan.run_plan import RunPlan, TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.model_numbers import text_part
from roll.distributed.strategy.saved_facts import SavedFacts, required_facts
from roll.errors import ConfigError, StrategyError
from roll.run.saving.checkpoint import Checkpoint
from roll.run.saving.manifest import reason
from roll.run.saving.model_files import read_model_config
from roll.run.saving.resume_rules import Difference, differences

logger = logging.getLogger(__name__)

_SHAPE_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "num_experts", "num_local_experts", "moe_intermediate_size",
)  # fmt: skip
_COUNTS = (
    "rollout_batch_size, the group size, per_device_train_batch_size, gradient_accumulation_steps, ppo_epochs, "
    "ulysses_size and the number of ranks"
)


class GroupsState(BaseModel):
    """Numbers of groups: where `RunState.data` stands, the first that was never started, and [number, version at its
    start] of each that was and that no step took. Of those that are finished, the ones that the filter `dropped`.
    Others are `deferred` to a later step, or were `replaced`."""

    model_config = ConfigDict(frozen=True, strict=True)

    place: int
    next: int
    active: list[list[int]]
    dropped: list[int] = []
    deferred: list[int] = []
    replaced: list[int] = []


class RunState(BaseModel):
    """The part of the driver's state that every run saves; a kind of run may save more. What earlier versions did not
    save is empty."""

    model_config = ConfigDict(frozen=True, strict=True)

    data: dict[str, Any]  # the place in the data
    updates_per_step: dict[str, int] = {}  # of each role that learns
    models: dict[str, dict[str, Any]] = {}  # the sizes in their config.json


class RLState(RunState):
    """That of reinforcement learning."""

    groups: GroupsState | None = None
    experience: dict[str, Any] | None = None  # of mode train: what was read and not released
    kl_coef: float
    running_moments: dict[str, dict[str, float]]
    shaping: list[dict[str, Any]] = []  # of experience_operators that remember something
    mix: dict[str, dict[str, Any]] = {}  # the place in each of mix.rows
    without_signal: int = 0  # steps in a row


S = TypeVar("S", bound=RunState)


class DataPlace(Protocol):
    """Data that are gone through in an order, and know where they are."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def model_sizes(worker: WorkerConfig) -> dict[str, Any]:
    """What decides the shapes of a role's weights; {} where its config.json is not on this machine."""
    model, _ = read_model_config(worker.model_args)
    found = {} if model is None else text_part(model)
    return {key: found[key] for key in _SHAPE_KEYS if found.get(key) is not None}


def state_of_roles(config: RunConfig, plan: RunPlan) -> dict[str, Any]:
    """What a RunState holds of them."""
    return {
        "updates_per_step": {role: train.updates_per_step for role, train in plan.trains.items()},
        "models": {role: model_sizes(worker) for role, worker in config.learning_roles.items()},
    }


def resume_problems(checkpoint: Checkpoint, config: RunConfig, plan: RunPlan) -> tuple[str, ...]:
    """Everything that stands against going on, for a plan; empty where nothing does."""
    try:
        state = _state(checkpoint, RunState)
    except ConfigError as error:
        return tuple(error.problems)
    return tuple(_refusals(checkpoint, config, plan, state, differences(checkpoint.state.config, config)))


def _state(checkpoint: Checkpoint, kind: type[S]) -> S:
    try:
        return kind.model_validate(checkpoint.state.run)
    except ValidationError as error:
        raise ConfigError(
            f"{checkpoint.path}: its driver state is not that of a run of this kind: {reason(error)}"
        ) from error


def _refusals(
    checkpoint: Checkpoint, config: RunConfig, plan: RunPlan, state: RunState, found: Sequence[Difference]
) -> list[str]:
    problems = [f"{d} since the checkpoint, but {d.rule.why}." for d in found if d.rule.effect == "refused"]
    for role, worker in config.learning_roles.items():
        problems += _role_problems(checkpoint, role, worker, plan.trains[role], state)
    keep = (
        f"Resuming from {checkpoint.path} needs the settings it was saved under; or start anew in another output_dir."
    )
    return [*problems, keep] if problems else []


def check_resume(checkpoint: Checkpoint, config: RunConfig, plan: RunPlan, kind: type[S]) -> tuple[S, frozenset[str]]:
    """The saved state, and the keys whose new values hold from now on, each of which is told. Raises ConfigError with
    everything that stands against going on."""
    state = _state(checkpoint, kind)
    found = differences(checkpoint.state.config, config)
    if problems := _refusals(checkpoint, config, plan, state, found):
        raise ConfigError(*problems)
    applied = [difference for difference in found if difference.rule.effect == "applied"]
    for difference in applied:
        logger.warning("resuming with another setting: %s (%s)", difference, difference.rule.why)
    return state, frozenset(difference.key for difference in applied)


def _role_problems(
    checkpoint: Checkpoint, role: str, worker: WorkerConfig, plan: TrainPlan, state: RunState
) -> Iterator[str]:
    try:
        saved = SavedFacts.read(checkpoint.path / role)
    except StrategyError as error:
        yield f"{role}: {error}"
        return
    required = required_facts(worker, plan.dp_size)
    if wrong := saved.disagreements(required):
        yield f"{role} was saved with {', '.join(wrong)}, to which its saved state is tied."
    yield from _one_group_problems(checkpoint, role, worker, saved, required)
    base = _at(checkpoint.state.config, role, "model_args", "model_name_or_path")
    if worker.model_args.has_lora and base not in (None, worker.model_args.model_name_or_path):
        yield (
            f"{role}.model_args.model_name_or_path: {base} -> {worker.model_args.model_name_or_path} since the "
            "checkpoint, which holds adapters of the former alone. Bring the model back to its place."
        )
    now = model_sizes(worker)
    for key, then in state.models.get(role, {}).items():
        if now and now.get(key) != then:
            yield f"{role}: the model had {key} {then} (now {now.get(key)}): its weights do not fit."
    then_updates, schedule = state.updates_per_step.get(role), worker.training_args.lr_scheduler_type
    if then_updates not in (None, plan.updates_per_step) and not schedule.startswith("constant"):
        yield (
            f"{role}: {then_updates} updates per step in the checkpoint, {plan.updates_per_step} now ({_COUNTS} make "
            f"them), but its learning rate falls from update to update (lr_scheduler_type: {schedule}): its place "
            "would mean another step. Keep the number, or take a constant schedule."
        )


def _one_group_problems(
    checkpoint: Checkpoint, role: str, worker: WorkerConfig, saved: SavedFacts, required: Mapping[str, object]
) -> Iterator[str]:
    """deepspeed_train, which alone is tied to a ZeRO stage, once had its optimizer's state in one buffer without weight
    decay, and in two with it."""
    if "zero_stage" not in required or "parameter_groups" in saved.fixed:
        return
    then = _at(checkpoint.state.config, role, "training_args", "weight_decay")
    now = worker.training_args.weight_decay
    if then is not None and bool(then) != bool(now):
        yield (
            f"{role}.training_args.weight_decay: {then} -> {now} since the checkpoint, which an earlier version wrote: "
            "weight decay cannot be switched on or off with it."
        )


def _at(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def data_place(source: DataPlace, state: Mapping[str, Any], path: Path) -> None:
    """Sets it to where the checkpoint was. Raises ConfigError if the data are others, or another kind of
    data."""
    try:
        source.load_state_dict(state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path}: its place in the data cannot be read ({type(error).__name__}: {error}): it is not that of a run "
            "of this kind"
        ) from error
