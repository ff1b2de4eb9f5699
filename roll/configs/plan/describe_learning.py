"""Lines of the plan about learning: algorithm, loss, rates and sizes, with a mark at each default."""

from collections.abc import Iterable, Iterator, Mapping

from roll.configs.load.chosen_values import KeysInYaml, says_any
from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.engine_limits import sampling_cuts
from roll.configs.plan.run_plan import RunPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.run import RunConfig
from roll.configs.sections.training import TrainingArgs
from roll.configs.tables.presets import PRESETS, preset_rows
from roll.utils.text import counted, short

# The learning rates of a run in words.

DEFAULT = " (default)"


def rate_rows(config: RunConfig, plan: RunPlan, user_keys: KeysInYaml) -> Iterator[tuple[str, ...]]:
    """The learning rate of every role that learns; the rows under "Algorithm" of a run without another algorithm."""
    for place, (role, worker) in enumerate(config.learning_roles.items()):
        key = f"{role}.training_args.learning_rate"
        lora = " with LoRA" if worker.model_args.has_lora else ""
        rate = f"{short(worker.training_args.learning_rate)}{'' if key in user_keys else DEFAULT}"
        yield "learning rate" if not place else "", f"{role} {rate}{lora}, {_shape(worker.training_args)}"


def _shape(args: TrainingArgs) -> str:
    least = args.lr_scheduler_kwargs.get("min_lr_ratio", 0.0)
    falls = {"linear": "linear", "cosine": "cosine"}.get(args.lr_scheduler_type)
    return f"{falls} to {short(args.learning_rate * least)}" if falls else "constant"


Rows = Iterator[tuple[str, ...]]
_SAMPLING = "actor_infer.generating_args"
_SCOPES: Mapping[str | None, str] = {
    "batch": "the batch",
    "group": "its group",
    "running": "all so far",
    "leave_one_out": "the others in its group",
}
_GRPO = ("adv_estimator", "norm_mean_type", "norm_std_type", "pg_variant", "actor_train.pg_variant", "loss_agg_mode")


def algorithm_rows(config: AlgorithmConfig, plan: BatchPlan, user_keys: KeysInYaml) -> Rows:
    """The rows under "Algorithm" of a run of reinforcement learning. `user_keys`: the keys of its YAML."""
    if config.has_training:
        yield from _name_rows(config, user_keys)
        yield "advantages", _advantages(config, user_keys)
        yield "loss", _loss(config, user_keys)
        yield "clip", _clip(config, user_keys)
        yield "KL", _kl(config, user_keys)
    if config.uses_engines:
        yield "temperature", _temperature(config, user_keys)
    yield from rate_rows(config, plan, user_keys) if config.has_training else ()
    if config.has_training:
        yield from _update_rows(plan, user_keys)
    if config.takes_steps:
        samples = f"{plan.num_groups} prompts x {plan.group_size} samples = {plan.samples_per_step} samples a step"
        yield "groups", samples + _by_default(key for key in config.batch_keys if key not in user_keys)
    yield from _length_rows(plan, user_keys)


def _name_rows(config: AlgorithmConfig, user_keys: KeysInYaml) -> Rows:
    if config.algorithm is not None:
        yield from preset_rows(config.algorithm, config.value)
    elif config.is_pure_opd:
        yield "algorithm", "on-policy distillation (is_pure_opd)"
    elif config.adv_estimator == "grpo" and not says_any(user_keys, *_GRPO):
        yield "algorithm", f"grpo{DEFAULT}"
    else:
        yield "algorithm", "no preset: the lines below"


def _advantages(config: AlgorithmConfig, user_keys: KeysInYaml) -> str:
    """Return what an advantage is made of. The line of the batch has the weight of a teacher."""
    if config.is_pure_opd:
        return "of the teacher alone, token by token: rewards, and so adv_estimator, have no say (is_pure_opd)"
    teacher = ", and the teacher's of each token (use_opd)" if config.distils else ""
    return _of_rewards(config) + _mark(config, user_keys, "adv_estimator") + teacher


def _of_rewards(config: AlgorithmConfig) -> str:
    row = config.estimator
    mean, std = (
        default if scope == "default" else scope
        for scope, default in zip(config.reward_norms, (row.mean, row.std), strict=True)
    )
    parts = [row.name]
    if row.takes_norms and mean:
        parts.append(f"reward minus the mean of {_SCOPES.get(mean, mean)}")
    if row.takes_std and std:
        parts.append(f"divided by the deviation of {_SCOPES.get(std, std)}")
    if row.needs_critic:
        parts.append(f"gamma {config.gamma:g}, lambd {config.lambd:g}")
    return f"{parts[0]}: {', '.join(parts[1:])}" if parts[1:] else parts[0]


def _loss(config: AlgorithmConfig, user_keys: KeysInYaml) -> str:
    form = config.policy_form.name + _mark(config, user_keys, "pg_variant", "actor_train.pg_variant")
    ratio = config.importance_sampling
    per = f", ratio per {ratio}" if config.policy_form.reads_ratio and ratio != "token" else ""
    return f"{form}{per}, {config.loss_agg_mode}{_mark(config, user_keys, 'loss_agg_mode')}"


def _clip(config: AlgorithmConfig, user_keys: KeysInYaml) -> str:
    form = config.policy_form
    if "pg_clip" not in form.keys:
        values = ", ".join(f"{key} {short(config.value(key))}{_mark(config, user_keys, key)}" for key in form.keys)
        return values or f"{form.name} has none"
    keys = ("pg_clip_low", "pg_clip_high") if config.use_pg_clip_range else ("pg_clip", "pg_clip")
    low, high = config.value(keys[0]), config.value(keys[1])
    dual = f", dual_clip_ratio_c {config.dual_clip_ratio_c:g}" if config.dual_clip_loss else ""
    named = " and ".join(dict.fromkeys(keys))
    text = f"ratio within {1 - low:g} and {1 + high:g} ({named}"
    return (
        f"{text}{', by default' if not says_any(user_keys, *keys) and _preset(config, keys[0]) is None else ''}){dual}"
    )


def _kl(config: AlgorithmConfig, user_keys: KeysInYaml) -> str:
    parts = []
    if "use_kl_loss" in config.kl_terms:
        parts.append(f"{short(config.kl_loss_coef)} x KL to the reference in the loss, {config.kl_loss_type}")
    if "add_token_level_kl" in config.kl_terms:
        aim = f", adapted to {config.target_kl:g}" if config.target_kl is not None else ""
        parts.append(f"{short(config.init_kl_coef)} x KL to the reference in the reward, {config.kl_penalty}{aim}")
    return "; ".join(parts) or f"none{_mark(config, user_keys, 'use_kl_loss', 'add_token_level_kl')}"


def _temperature(config: AlgorithmConfig, user_keys: KeysInYaml) -> str:
    sampling = config.actor_infer.generating_args
    text = f"{short(sampling.temperature)}{_mark(config, user_keys, f'{_SAMPLING}.temperature')}"
    return ", ".join([text, *(f"{key} {short(sampling.value(key))}" for key in sampling_cuts(sampling))])


def _update_rows(plan: BatchPlan, user_keys: KeysInYaml) -> Rows:
    for place, train in enumerate(plan.trains.values()):
        key = f"{train.role}.training_args.gradient_accumulation_steps"
        size = f"{counted(train.updates_per_step, 'update')} a step, {train.samples_per_update} samples each"
        yield "updates" if not place else "", f"{train.role} {size}{'' if key in user_keys else DEFAULT}"


def _length_rows(plan: BatchPlan, user_keys: KeysInYaml) -> Rows:
    defaulted = [] if "prompt_length" in user_keys else ["prompt_length"]
    defaulted += [] if says_any(user_keys, "response_length", "sequence_length") else ["response_length"]
    text = f"prompt {plan.prompt_length} + response {plan.response_length} = {plan.sequence_length} tokens"
    yield "lengths", text + _by_default(defaulted)
    validation = (plan.val_prompt_length, plan.val_response_length)
    if validation != (plan.prompt_length, plan.response_length):
        yield "", f"in validation {validation[0]} + {validation[1]} = {plan.val_sequence_length}"


def _mark(config: AlgorithmConfig, user_keys: KeysInYaml, *keys: str) -> str:
    """Return the mark behind a value that the YAML leaves out: that it is a default, or of which algorithm."""
    if says_any(user_keys, *keys):
        return ""
    return DEFAULT if all(_preset(config, key) is None for key in keys) else f" ({config.algorithm})"


def _by_default(keys: Iterable[str]) -> str:
    named = " and ".join(keys)
    return f" ({named} by default)" if named else ""


def _preset(config: AlgorithmConfig, key: str) -> object:
    return PRESETS[config.algorithm].settings.get(key) if config.algorithm is not None else None
