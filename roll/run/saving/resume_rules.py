"""What becomes of a setting that is not the checkpoint's: one table, from which docs/resuming.md is checked."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from roll.configs.base import Settings, holds_mapping, join, nested_class
from roll.configs.sections.run import RunConfig
from roll.utils.secrets import redact
from roll.utils.text import show

Effect = Literal["applied", "refused", "free"]
TRAINER = "<trainer>"


@dataclass(frozen=True)
class Rule:
    """The effect of changing a key between a run and its resumption. `pattern` matches keys; `<trainer>` in it stands
    for each role that learns.

    - `applied`: the new value holds from now on, and the difference is reported
    - `refused`: the run does not start
    - `free`: nothing learned depends on the key, and nothing is reported
    """

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
_JUDGED = "answers are scored by another model from now on"
_TAUGHT = "what is learnt comes from another teacher from now on"
_SHARES = "what a trainer's saved state is tied to is refused (second table)"
_TRAINER = "a trainer reads its own files only; `pretrain: <checkpoint>/hf_model` starts anew from its weights"
_FROZEN = "the optimizer holds the states of what was trained"
_ADAPTERS = "the checkpoint holds adapters of that form, and the optimizer their states"
_OPTIMIZER = "the optimizer's settings are the YAML's; the schedule goes on at its place"
_USERS = "what it means, whatever its name, is up to the user's code"
_DATA = "the place in the data stays"
_SPEED = "how fast it goes, not what comes out"

RULES = (
    Rule("seed", "refused", "the order of the data comes from it: rows of this epoch would be trained twice or never"),
    Rule(f"{TRAINER}.data_args.shuffle", "refused", "the place in the data would mean other rows"),
    Rule(f"{TRAINER}.data_args.drop_last", "refused", "the place in the data would mean other rows"),
    Rule("mix.rows.*.data_args.shuffle", "refused", "the place in the rows would mean others"),
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
    Rule("mode", "refused", "what was sampled and not trained on yet is kept elsewhere in another mode"),
    Rule("experience.reuse.*", "applied", "groups that are there come back under the new rule"),
    Rule("experience.*", "free", _PLACE),
    Rule("max_steps", "applied", "schedules end there, also those that are under way"),
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
            "*.num_gpus_per_worker", "*.worker_cls", "network_interface", "profiler_*", "gpu_peak_tflops",
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
            "*gradient_checkpointing*", "*enable_activation_offload",
        )
    ),
    Rule("*", "applied", "read from the YAML in every step"),
)  # fmt: skip


def differences(then: Mapping[str, Any], now: RunConfig) -> list[Difference]:
    """Settings of a saved configuration (JSON values) that `now` has otherwise. Keys that do nothing, and keys that one
    of the two does not know, are left out."""
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
