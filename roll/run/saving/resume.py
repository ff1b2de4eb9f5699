"""Checks of resuming from a checkpoint under this configuration, before any process is started."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from roll.configs.base import Settings, holds_mapping, join, nested_class
from roll.configs.plan.run_plan import RunPlan
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.model_numbers import text_part
from roll.configs.strategies.table import required_facts
from roll.distributed.strategy.saved_facts import SavedFacts
from roll.errors import ConfigError, StrategyError
from roll.run.saving.checkpoint import Checkpoint
from roll.run.saving.manifest import reason
from roll.run.saving.model_files import read_model_config
from roll.utils.secrets import redact
from roll.utils.text import show

# What becomes of a setting that is not the checkpoint's: one table, which reports/checks.md repeats.

Effect = Literal["applied", "refused", "free"]
TRAINER = "<trainer>"


@dataclass(frozen=True)
class Rule:
    """The effect of changing a key (`pattern`; `<trainer>`: each role that learns) between a run and its resumption:
    the new value is `applied` and reported, the start `refused`, or nothing learned depends on it and it is `free`."""

    pattern: str
    effect: Effect
    why: str

    def matches(self, key: str, trainers: Iterable[str]) -> bool:
        if TRAINER not in self.pattern:
            return fnmatchcase(key, self.pattern)
        return any(fnmatchcase(key, self.pattern.replace(TRAINER, role)) for role in trainers)


@dataclass(frozen=True)
class Difference:
    key: str
    then: Any
    now: Any
    rule: Rule

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.then)} -> {_shown(self.now)}"


_PLACE = "where and how often things are written, or which machines do it"
_VALIDATION = "validation measures, and nothing is learned from it"
_ROWS = "the rows themselves are compared: others are refused, and so are renamed files whose rows have no ids"
_WEIGHTS = "the weights come from the checkpoint; a model of another shape is refused"
_JUDGED = "responses are scored by another model from now on"
_TAUGHT = "the run learns from another teacher from now on"
_SHARES = "what a trainer's saved state is tied to is refused (second table)"
_TRAINER = "a trainer reads its own files only; `pretrain: <checkpoint>/hf_model` starts anew from its weights"
_FROZEN = "the optimizer holds the states of what was trained"
_ADAPTERS = "the checkpoint holds adapters of that form, and the optimizer their states"
_OPTIMIZER = "the optimizer's settings are the YAML's; the schedule continues at its place"
_USERS = "its meaning is up to the user's code"
_DATA = "the place in the data stays"
_SPEED = "how fast it goes, not what comes out"

RULES = (
    Rule("seed", "refused", "the order of the data comes from it: rows of this epoch would be trained twice or never"),
    Rule(f"{TRAINER}.data_args.shuffle", "refused", "the position in the data would mean other rows"),
    Rule(f"{TRAINER}.data_args.drop_last", "refused", "the position in the data would mean other rows"),
    Rule("mix.rows.*.data_args.shuffle", "refused", "the position in the rows would mean other rows"),
    Rule("custom_envs.*", "applied", _USERS),
    Rule("rewards.*.reward_args*", "applied", _USERS),
    Rule("adv_args*", "applied", _USERS),
    Rule("pg_args*", "applied", _USERS),
    Rule(f"{TRAINER}.strategy_args.strategy_name", "refused", _TRAINER),
    Rule(f"{TRAINER}.model_args.freeze_module_prefix", "refused", _FROZEN),
    *(
        Rule(f"{TRAINER}.model_args.{key}", "refused", _ADAPTERS)
        for key in ("lora_target", "lora_rank", "lora_alpha", "use_rslora", "additional_target")
    ),
    Rule("*.model_args.adapter_name_or_path", "free", _WEIGHTS),
    Rule("*.training_args.*", "applied", _OPTIMIZER),
    *(Rule(key, "applied", _OPTIMIZER) for key in ("max_grad_norm", "critic.max_grad_norm")),
    Rule("mode", "refused", "another mode keeps groups that are not trained on yet elsewhere"),
    Rule("experience.reuse.*", "applied", "existing groups come back under the new rule"),
    Rule("experience.*", "free", _PLACE),
    Rule("max_steps", "applied", "schedules end there, running ones included"),
    Rule("num_train_epochs", "free", "the steps that it makes are compared as max_steps"),
    Rule("rollout_batch_size", "applied", _DATA),
    Rule("num_return_sequences_in_group", "applied", _DATA),
    Rule("train_env_manager.*", "applied", "the place in the stream of environments stays"),
    Rule("init_kl_coef", "applied", "a coefficient that adapts starts from the new value"),
    Rule("reference.model_args.model_name_or_path", "applied", "the KL is to another reference from now on"),
    *(
        Rule(f"{role}.model_args.model_name_or_path", "applied", _JUDGED)
        for role in ("rewards.*", "reward", "reward_model")
    ),
    *(Rule(key, "applied", _TAUGHT) for key in ("teacher_pretrain", "teacher*.model_args.model_name_or_path")),
    Rule("*.model_name_or_path", "free", _WEIGHTS),
    Rule("*download_type", "free", _WEIGHTS),
    Rule("pretrain", "free", _WEIGHTS),
    Rule("reward_pretrain", "free", _WEIGHTS),
    Rule("student_pretrain", "free", _WEIGHTS),
    *(Rule(f"*.data_args.{key}", "free", _ROWS) for key in ("file_name", "split", "subset", "operators*")),
    Rule("*.data_args.generator*", "free", _ROWS),
    Rule("*.strategy_args.strategy_config*", "applied", _SHARES),
    Rule("pipeline", "free", "how this run was started"),
    Rule("resume_from_checkpoint", "free", "how this run was started"),
    Rule("verify_checkpoint", "free", "how this run was started"),
    *(
        Rule(pattern, "free", _PLACE)
        for pattern in (
            "exp_name", "*.name", "output_dir", "logging_dir", "rollout_dump_dir", "recorder.*", "checkpoint_config.*",
            "track_with", "tracker_kwargs*", "save_steps", "logging_steps", "max_ckpt_to_keep", "num_nodes",
            "num_gpus_per_node", "system_envs*", "*.system_envs*", "*.device_mapping", "*.world_size",
            "*.num_gpus_per_worker", "*.worker_cls", "network_interface", "profiler_*", "gpu_peak_tflops", "gpu_name",
            "gpu_hour_cost",
        )
    ),
    *(Rule(pattern, "free", _VALIDATION) for pattern in ("eval_steps", "val_*", "validation*", "eval_sets*")),
    *(
        Rule(pattern, "free", _SPEED)
        for pattern in (
            "rpc_timeout", "*_timeout", "*.backend_timeout", "model_update_buffer_size_mb", "weight_sync_route",
            "max_running_requests", "router_args*", "*.infer_batch_size", "*dynamic_batching*",
            "*.max_tokens_per_microbatch*", "*.sequence_length_round*", "*.use_sequence_packing",
            "*.use_prefix_sharing", "*.ulysses_size", "*.sequence_packing_args*", "*.attn_implementation",
            "*gradient_checkpointing*", "*model_args.recompute_granularity", "*enable_activation_offload",
        )
    ),
    Rule("*", "applied", "read from the YAML in every step"),
)  # fmt: skip


def differences(then: Mapping[str, Any], now: RunConfig) -> list[Difference]:
    """Settings of a saved configuration (JSON values) that `now` has otherwise, where both know them and they do
    something."""
    dumped = redact(now.model_dump(mode="json"))
    trainers = [name for name, role in now.roles.items() if role.learns]
    return [
        Difference(key, before, after, next(rule for rule in RULES if rule.matches(key, trainers)))
        for key, before, after in _unequal(type(now), then, dumped, "")
    ]


def _unequal(
    cls: type[Settings] | None, then: Mapping[str, Any], now: Mapping[str, Any], path: str
) -> Iterator[tuple[str, Any, Any]]:
    """cls: the class of the settings here; None below a key that holds any mapping, where an absent entry is null."""
    for key in sorted(then.keys() & now.keys() if cls else then.keys() | now.keys()):
        before, after, inner, step = then.get(key), now.get(key), None, _unequal
        if before == after:
            continue
        if cls is not None:
            field = cls.model_fields[key]
            inner = nested_class(field.annotation)
            step = _unequal_entries if inner is not None and holds_mapping(field.annotation) else _unequal
        if isinstance(before, dict) and isinstance(after, dict):
            yield from step(inner, before, after, join(path, key))
        else:
            yield join(path, key), before, after


def _unequal_entries(
    cls: type[Settings] | None, then: Mapping[str, Any], now: Mapping[str, Any], path: str
) -> Iterator[tuple[str, Any, Any]]:
    """Differences in a mapping from user-chosen names to settings of one class."""
    for name in sorted(then.keys() | now.keys()):
        before, after = then.get(name), now.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _unequal(cls, before, after, join(path, name))
        elif before != after:
            yield join(path, name), before, after


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "given"
    if isinstance(value, str):
        return value if len(value) <= 60 else f"{value[:57]}..."
    return "none" if value is None else show(value, 60)


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
    """Part of the driver's state that every run saves; a kind of run may save more."""

    model_config = ConfigDict(frozen=True, strict=True)

    data: dict[str, Any]  # the place in the data
    updates_per_step: dict[str, int]  # of each role that learns
    models: dict[str, dict[str, Any]]  # the sizes in their config.json


class RLState(RunState):
    """State of a run of reinforcement learning."""

    groups: GroupsState | None = None
    experience: dict[str, Any] | None = None  # of mode train: what was read and not released
    kl_coef: float
    running_moments: dict[str, dict[str, float]]
    shaping: list[dict[str, Any]] = []  # of experience_operators that remember something
    mix: dict[str, dict[str, Any]] = {}  # the place in each of mix.rows


S = TypeVar("S", bound=RunState)


class DataPlace(Protocol):
    """Data that are gone through in an order, and know where they are."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def model_sizes(worker: WorkerConfig) -> dict[str, Any]:
    """Return everything that decides the shapes of a role's weights; {} if its config.json is not on this machine."""
    model, _ = read_model_config(worker.model_args)
    sizes = {} if model is None else text_part(model)
    return {key: sizes[key] for key in _SHAPE_KEYS if sizes.get(key) is not None}


def state_of_roles(config: RunConfig, plan: RunPlan) -> dict[str, Any]:
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
    checkpoint: Checkpoint, config: RunConfig, plan: RunPlan, state: RunState, changes: Sequence[Difference]
) -> list[str]:
    problems = [f"{d} since the checkpoint, but {d.rule.why}." for d in changes if d.rule.effect == "refused"]
    for role, worker in config.learning_roles.items():
        problems += _role_problems(checkpoint, role, worker, plan.trains[role], state)
    keep = (
        f"Resuming from {checkpoint.path} needs the settings it was saved under; or start anew in another output_dir."
    )
    return [*problems, keep] if problems else []


def check_resume(checkpoint: Checkpoint, config: RunConfig, plan: RunPlan, kind: type[S]) -> tuple[S, frozenset[str]]:
    """The saved state, and the keys whose new values hold from now on. ConfigError with everything against it."""
    state = _state(checkpoint, kind)
    changes = differences(checkpoint.state.config, config)
    if problems := _refusals(checkpoint, config, plan, state, changes):
        raise ConfigError(*problems)
    applied = [difference for difference in changes if difference.rule.effect == "applied"]
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
    base = _at(checkpoint.state.config, role, "model_args", "model_name_or_path")
    if worker.model_args.has_lora and base not in (None, worker.model_args.model_name_or_path):
        yield (
            f"{role}.model_args.model_name_or_path: {base} -> {worker.model_args.model_name_or_path} since the "
            "checkpoint, which holds adapters of the former alone. Put the model back where it was."
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


def _at(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def data_place(source: DataPlace, state: Mapping[str, Any], path: Path) -> None:
    """Sets it to where the checkpoint was. Raises ConfigError if the data are others."""
    try:
        source.load_state_dict(state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path}: its place in the data cannot be read ({type(error).__name__}: {error}): it is not that of a run "
            "of this kind"
        ) from error
