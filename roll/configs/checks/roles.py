"""Checks of any run's settings for contradictions: the section of each role, and where the roles are placed."""

from collections.abc import Iterator, Mapping

from roll.configs.base import Settings, join
from roll.configs.checks.platforms import platform_warnings
from roll.configs.checks.variables import allowed_warnings, variable_problems
from roll.configs.load.known_keys import ROLL_REWARDS, ROLL_WORKERS
from roll.configs.plan.layout import layout_problems
from roll.configs.plan.run_plan import RunPlan, schedule_warnings
from roll.configs.problems import Problem
from roll.configs.sections.cluster import SequencePackingArgs, WorkerConfig
from roll.configs.sections.experience import ReuseConfig
from roll.configs.sections.run import RunConfig
from roll.configs.tables.roles import Role
from roll.platforms.allocator import expandable


def unused_keys(section: WorkerConfig, role: Role) -> list[str]:
    """Keys that are given and that this role has no use for, sorted as their class declares them."""
    return list(_is_unused(section, WorkerConfig, role.reads, ""))


def _is_unused(section: Settings, cls: type[Settings], reads: frozenset[str], at: str) -> Iterator[str]:
    for key in cls.model_fields:
        path, value = join(at, key), getattr(section, key)
        if key not in section.model_fields_set or path in reads:
            continue
        if not isinstance(value, Settings):
            yield path
        elif any(read.startswith(f"{path}.") for read in reads):
            yield from _is_unused(value, type(value), reads, path)
        elif value.model_fields_set:
            yield path


# How a role's rows become micro batches: by count, by tokens with padding, or packed. What contradicts what.


def batching_problems(
    role: Role, worker: WorkerConfig, longest: int, length_keys: tuple[str, ...]
) -> Iterator[Problem]:
    """`longest` is the longest sequence of the run, in tokens; it follows from `length_keys`. A micro batch of training
    holds at least the rows that are learnt together."""
    at, packing = role.name, worker.sequence_packing_args
    packs_by_tokens = worker.packs_rows and packing.by_tokens
    if worker.packs_rows and worker.model_args.attn_implementation == "eager":
        key, (switch, value) = f"{at}.model_args.attn_implementation", worker.packing_switch
        yield Problem(
            f"{key}: eager with {at}.{switch}: {value}, which it does not support. Use sdpa, or fa2 on a GPU.",
            (key, f"{at}.{switch}"),
        )
    for where, suffix in (("train", "train"), ("infer", "forward")):
        switch = f"use_dynamic_batching_in_{where}"
        together = role.rows_together if where == "train" else 1
        least, named = together * longest, "one sequence" if together == 1 else f"{together} sequences of one pair"
        limit = f"sequence_packing_args.max_packed_sequence_length_{suffix}"
        limit = f"max_tokens_per_microbatch_in_{where}" if worker.value(switch) else limit
        is_limited = worker.value(switch) or (packs_by_tokens and (where == "infer" or role.learns))
        if worker.value(switch) and packs_by_tokens:
            yield Problem(
                f"{at}.{switch} and {at}.sequence_packing_args.algorithm: load_balance both make micro batches by "
                "tokens. Remove one.",
                (f"{at}.{switch}", f"{at}.sequence_packing_args.algorithm"),
            )
        elif is_limited and (tokens := worker.value(limit) or 0) < least:
            text = f"{at}.{limit}: {tokens} must be at least {named}, {least} tokens."
            yield Problem(text, (f"{at}.{limit}", *length_keys))


def batching_warnings(role: str, worker: WorkerConfig) -> Iterator[str]:
    """Settings of packing that nothing reads."""
    packing, at = worker.sequence_packing_args, f"{role}.sequence_packing_args"
    changed = [key for key in SequencePackingArgs.model_fields if getattr(packing, key) != getattr(_DEFAULTS, key)]
    verb = "does" if len(changed) == 1 else "do"
    if changed and not worker.packs_rows:
        yield f"{at} does nothing while {role}.use_sequence_packing is off."
    elif changed and not packing.by_tokens:
        yield f"{at}: {', '.join(changed)} {verb} nothing with algorithm: none; load_balance reads it."


_DEFAULTS = SequencePackingArgs()


# Keys that count only while another is on: given without it, a warning names them.

Switches = Mapping[str, tuple[str, ...]]
"""Keys by their switch, both as paths below the settings that have them."""

RL: Switches = {
    "use_kl_loss": ("kl_loss_coef", "kl_loss_type"),
    "add_token_level_kl": ("init_kl_coef", "target_kl", "kl_horizon", "kl_penalty"),
    "use_pg_clip_range": ("pg_clip_low", "pg_clip_high"),
    "dual_clip_loss": ("dual_clip_ratio_c",),
    "is_use_additional_prompts": ("max_additional_running_prompts",),
    "async_generation_ratio": (
        "max_staleness",
        "max_token_staleness",
        "kv_on_update",
        "partial_gpu_mode",
        "unfinished_groups",
        "unfinished_grace_s",
    ),
    "recorder.num_groups": ("recorder.log_prob_steps", "recorder.tracked_samples"),
    "recorder.tracked_samples": ("recorder.tracked_steps",),
    "experience.reuse.enable": tuple(f"experience.reuse.{key}" for key in ReuseConfig.model_fields if key != "enable"),
    "rollout_mock.enable": ("rollout_mock.mode", "rollout_mock.dump_dir"),
    "mix.rows": ("mix.weight", "mix.warmup_steps", "mix.decay_steps", "mix.final_weight", "mix.token_weights"),
    "mix.decay_steps": ("mix.final_weight",),
}
IS_WEIGHT: Switches = {
    "train_infer_correction.is_weight.enabled": (
        "train_infer_correction.is_weight.weight_type",
        "train_infer_correction.is_weight.upper_bound",
    )
}
RLVR: Switches = {
    "difficulty_mask": ("difficulty_low_threshold", "difficulty_high_threshold"),
    "error_max_len_clip": ("error_max_len_threshold",),
}
REWARD: Switches = {"dynamic_timeout.enable": ("dynamic_timeout.ratio", "dynamic_timeout.min_s")}
AGENTIC: Switches = {"env_monitor.enable": ("env_monitor.hung_timeout",)}
ROLE: Switches = {
    "use_dynamic_batching_in_train": ("max_tokens_per_microbatch_in_train", "sequence_length_round_in_train"),
    "use_dynamic_batching_in_infer": ("max_tokens_per_microbatch_in_infer", "sequence_length_round_in_infer"),
}
LEARNS: Switches = {
    "model_args.lora_target": tuple(
        f"model_args.{key}" for key in ("lora_rank", "lora_alpha", "use_rslora", "lora_dropout")
    ),
}
HEADS: Switches = {"mtp_training_mode": ("mtp_loss_scaling_factor",)}


def switched_off(settings: Settings, switches: Switches, at: str = "") -> Iterator[str]:
    """Warns of keys that do nothing since their switch is off; a number 0 asks for nothing. `at`: the YAML path of the
    settings."""
    for switch, keys in switches.items():
        changed = [key for key in keys if settings.is_changed(key)]
        changed = [join(at, key) for key in changed if (value := settings.value(key)) or isinstance(value, bool)]
        if changed and (not settings.value(switch) or settings.value(switch) == "disabled"):
            verb = "does" if len(changed) == 1 else "do"
            yield f"{' and '.join(changed)} {verb} nothing while {join(at, switch)} is off."


SCHEDULE_KEYS = frozenset({"min_lr_ratio"})


def _missing_models(config: RunConfig) -> Iterator[Problem]:
    """Yield one problem for each missing key that would give its roles a model."""
    missing: dict[str, list[str]] = {}
    for role, worker in config.model_roles.items():
        if worker.model_args.model_name_or_path is None:
            key = (f"{role}.model_args.model_name_or_path", *config.roles[role].model_keys)[-1]
            missing.setdefault(key, []).append(role)
    for key, roles in missing.items():
        keys = dict.fromkeys(path for role in roles for path in config.roles[role].model_keys)
        yield Problem(
            f"{' and '.join(roles)} {'have' if roles[1:] else 'has'} no model: {key} is missing. Set it to a directory "
            "or a hub id such as Qwen/Qwen2.5-0.5B.",
            (*(f"{role}.model_args.model_name_or_path" for role in roles), *keys),
        )


def run_problems(config: RunConfig) -> Iterator[Problem]:
    yield from _missing_models(config)
    for role, worker in config.model_roles.items():
        yield from _training_problems(role, worker) if config.roles[role].learns else ()
        known = {*ROLL_WORKERS, *(ROLL_REWARDS if config.roles[role].is_apart else ())}
        if worker.worker_cls is not None and worker.worker_cls not in known:
            yield Problem(
                f"{role}.worker_cls: {worker.worker_cls} is not supported. Remove it; the strategy runs {role}.",
                (f"{role}.worker_cls",),
            )
        yield from batching_problems(config.roles[role], worker, config.trained_length, config.length_keys)
    if config.counts_epochs and not config.can_count_rows:
        yield Problem(
            "num_train_epochs: only the environments roll_math and roll_qa have rows that epochs can count. "
            "Set max_steps.",
            ("num_train_epochs", "max_steps"),
        )
    yield from variable_problems(config)
    workers = config.model_roles
    yield from layout_problems(workers, config.num_nodes, config.num_gpus_per_node)


def _training_problems(role: str, worker: WorkerConfig) -> Iterator[Problem]:
    for flag, is_set in (("bf16", worker.training_args.bf16), ("fp16", worker.training_args.fp16)):
        if is_set and worker.model_args.dtype != flag:
            yield Problem(
                f"{role}.training_args.{flag}: true contradicts {role}.model_args.dtype: "
                f"{worker.model_args.dtype}. Remove {flag}.",
                (f"{role}.training_args.{flag}", f"{role}.model_args.dtype"),
            )
    unknown = set(worker.training_args.lr_scheduler_kwargs) - SCHEDULE_KEYS
    for key in sorted(unknown):
        path = f"{role}.training_args.lr_scheduler_kwargs.{key}"
        yield Problem(f"{path}: no schedule has this key. Known: {', '.join(SCHEDULE_KEYS)}.", (path,))


def run_warnings(config: RunConfig, plan: RunPlan) -> Iterator[str]:
    """Yield warnings about settings that work but may not be intended. Keys of roles that are not started are left to
    who says so."""
    yield from platform_warnings(config.platform)
    for name, section in config.sections.items():
        role = config.roles[name]
        if (keys := unused_keys(section, role)) and (role.head is None or name in config.model_roles):
            yield f"{name}: {', '.join(keys)} {'does' if len(keys) == 1 else 'do'} nothing here: {role.reason}."
    for name, worker in config.model_roles.items():
        yield from batching_warnings(name, worker)
        yield from switched_off(worker, {**ROLE, **LEARNS} if config.roles[name].learns else ROLE, name)
        yield from switched_off(worker, HEADS if "mtp_training_mode" in config.roles[name].reads else {}, name)
    if "USE_MODELSCOPE" in config.system_envs and config.model_download_type is None:
        yield (
            "system_envs.USE_MODELSCOPE does nothing here: write model_download_type: MODELSCOPE for models from there."
        )
    for name, worker in config.model_roles.items():
        variables = {**config.system_envs, **worker.system_envs}
        if (names := expandable(variables)) and plan.layout.shares_devices(name):
            yield (
                f"{name}: expandable_segments is taken out of {names[0]} of system_envs: weights go to other roles on "
                "its GPUs by CUDA IPC, which containers refuse for such memory. Set it for roles that share no GPU."
            )
    yield from allowed_warnings(config)
    for name, worker in config.learning_roles.items():
        args = worker.training_args
        if args.warmup_steps and args.warmup_ratio:
            yield (
                f"{name}.training_args.warmup_ratio does nothing: warmup_steps: {args.warmup_steps} says how long the "
                "warm-up is."
            )
    if config.num_train_epochs is not None and not config.counts_epochs:
        yield f"num_train_epochs: {config.num_train_epochs:g} does nothing here: max_steps: {config.max_steps} counts."
    if config.is_changed("eval_steps") and config.validates and config.missing_validation:
        yield f"eval_steps: {config.eval_steps} does nothing: there is no section {config.missing_validation}."
    if not config.counts_epochs:
        yield from schedule_warnings(plan)
