"""Checks of rollouts that run ahead of training."""

from collections.abc import Collection, Iterator

from roll.configs.plan.batch_plan import groups_ahead, oldest_allowed, sync_interval
from roll.configs.plan.derive import rollout_log_probs_are_full, weighs_importance
from roll.configs.plan.layout import devices_apart
from roll.configs.problems import Problem, ids_text
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.rollout import LENGTH_KEYS, RolloutConfig
from roll.configs.tables.roles import ACTOR_TRAIN

RATIO, STALENESS, INTERVAL = "async_generation_ratio", "max_staleness", "actor_train.model_update_frequency"
KV, UNFINISHED, ADDITIONAL = "kv_on_update", "unfinished_groups", "max_additional_running_prompts"
WEIGHT = "train_infer_correction.is_weight.enabled"


def async_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    yield from _bounds_problems(config)
    if config.unfinished_groups != "carry" and config.max_staleness:
        yield Problem(
            f"{UNFINISHED}: {config.unfinished_groups} and {STALENESS}: {config.max_staleness}: no group is carried "
            f"into a later step, so none gets old. Remove {STALENESS}, or set {UNFINISHED}: carry.",
            (UNFINISHED, STALENESS),
        )
    if config.is_async:
        yield from _judge_problems(config)
    if config.async_generation_ratio and config.rollout_mock.replays:
        yield Problem(
            f"{RATIO}: {config.async_generation_ratio:g}: with rollout_mock.mode: mock nothing is sampled ahead. Set "
            f"{RATIO}: 0.",
            (RATIO, "rollout_mock"),
        )


def _bounds_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    """Groups that no step could take before they are too old: a step would wait forever."""
    ratio, interval, oldest = config.async_generation_ratio, sync_interval(config), oldest_allowed(config)
    if not config.is_async:
        if oldest < interval - 1:
            yield Problem(
                f"{STALENESS}: {oldest} cannot be kept with {INTERVAL}: {interval}: responses are up to {interval - 1} "
                f"{_steps(interval - 1)} old. Set {STALENESS}: {interval - 1}, or {INTERVAL}: {oldest + 1}.",
                (STALENESS, INTERVAL),
            )
        return
    under_way = interval * config.num_groups + groups_ahead(config)
    most = (oldest + 1) * config.num_groups
    if under_way <= most:
        return
    at = f"{RATIO}: {ratio:g}" + (f", {INTERVAL}: {interval}" if interval > 1 else "")
    needed = -(-under_way // config.num_groups) - 1
    others = oldest + 1 - interval
    or_ratio = f", or {RATIO}: {others}" if others >= 0 else ""
    yield Problem(
        f"{at} and {STALENESS}: {oldest}: {under_way} groups may be in flight, but only {most} can be trained on "
        f"before one is {oldest + 1} {_steps(oldest + 1)} old: a step would wait forever. Set {STALENESS}: "
        f"{needed}{or_ratio}.",
        (RATIO, STALENESS, INTERVAL),
    )


def _judge_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    """A judge has its turn after the rollout of a step, for all its answers: too long for all engines to stand."""
    total = config.actor_infer.num_workers
    for role, common in _sharing(config):
        if config.roles[role].is_apart and not (config.partial_gpu_mode and _staying(config, common)):
            mappings = ("actor_infer.device_mapping", f"{role}.device_mapping")
            alone = " (partial_gpu_mode: false)" if not config.partial_gpu_mode and _staying(config, common) else ""
            yield Problem(
                f"{RATIO}: {config.async_generation_ratio:g}: {' and '.join(mappings)} share "
                f"device{'s' if len(common) > 1 else ''} {ids_text(common)}: they take turns there, and while the "
                f"judge scores the responses of a step, none of {total} engine{'s' if total > 1 else ''} would be left "
                f"to sample{alone}. Give actor_infer at least one engine on devices that {role} does not use, or set "
                f"{RATIO}: 0.",
                (RATIO, *mappings, "partial_gpu_mode"),
            )


def _staying(config: AlgorithmConfig, taken: Collection[int]) -> int:
    """Engines that stand on none of these devices."""
    return len(devices_apart(config.actor_infer, taken))


def _sharing(config: AlgorithmConfig) -> Iterator[tuple[str, list[int]]]:
    """Roles with a model on the engines' devices, with those devices."""
    engines = set(config.actor_infer.device_mapping or ())
    for role, worker in config.model_roles.items():
        common = sorted(engines & set(worker.device_mapping or ()))
        if worker is not config.actor_infer and common:
            yield role, common


def async_warnings(config: AlgorithmConfig, old_log_probs_are_own: bool) -> Iterator[str]:
    """`old_log_probs_are_own`: they are of the weights that learn, whatever weights sampled."""
    oldest = oldest_allowed(config) if config.is_async else sync_interval(config) - 1
    if oldest and old_log_probs_are_own and not weighs_importance(config):
        key = f"{RATIO}: {config.async_generation_ratio:g}" if config.is_async else f"{INTERVAL}: {oldest + 1}"
        yield (
            f"{key}: responses are up to {oldest} {_steps(oldest)} older than the weights that they train, and old "
            "log-probs are the trainer's, so nothing corrects for it. See "
            "force_disable_old_logprobs_recompute and train_infer_correction."
        )
    is_default = config.train_infer_correction.is_weight.enabled is None
    if config.is_async and is_default and not rollout_log_probs_are_full(config):
        yield (
            f"{WEIGHT} is on by default when rollouts run ahead, but stays off here: the engine's log-probs are not "
            "those of the whole distribution."
        )
    yield from _unused_keys(config)


def _unused_keys(config: AlgorithmConfig) -> Iterator[str]:
    for key in ("max_token_staleness", KV, "partial_gpu_mode"):
        if config.async_generation_ratio and not config.is_async and config.is_changed(key):
            yield f"{key} does nothing: {UNFINISHED} is {config.unfinished_groups}, so no token is old."
    if (
        config.is_async
        and config.kv_on_update == "keep"
        and any(
            config.roles[role] is ACTOR_TRAIN and not (config.partial_gpu_mode and _staying(config, common))
            for role, common in _sharing(config)
        )
    ):
        yield f"{KV}: keep does nothing: keys and values are dropped when engines free their devices for actor_train."
    if config.max_additional_running_prompts and config.async_generation_ratio:
        yield f"{ADDITIONAL} does nothing: the groups of {RATIO} run in any case."
    if config.recorder.tracked_samples and not set(SAMPLE_TRACKERS) & set(config.track_with):
        yield f"recorder.tracked_samples does nothing: none of {', '.join(SAMPLE_TRACKERS)} is in track_with."


def _steps(count: int) -> str:
    return "step" if count == 1 else "steps"


# What a run in parts asks of its settings (`mode`, `experience`).


def mode_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    if not config.is_in_parts:
        return
    mode, keys = f"mode: {config.mode}", config.experience
    if config.unfinished_groups != "carry":
        yield Problem(
            f"{mode} with unfinished_groups: {config.unfinished_groups}: a restarted explorer would not know which "
            "groups were dropped. Set unfinished_groups: carry.",
            ("mode", "unfinished_groups"),
        )
    if config.rollout_mock.replays:
        yield Problem(
            f"{mode} with rollout_mock.mode: mock: recorded rollouts need no explorer. Set mode: both.",
            ("mode", "rollout_mock"),
        )
    if config.has_training and config.counts_epochs:
        yield Problem(
            f"num_train_epochs: {mode} reads no rows, so it cannot count epochs. Set max_steps, as in the explorer.",
            ("mode", "num_train_epochs", "max_steps"),
        )
    if keys.reuse.enable and oldest_allowed(config) < 1:
        yield Problem(
            "experience.reuse.enable: true reuses nothing with max_staleness: 0: a group is one step old after it was "
            "trained on. Set max_staleness to 1 or more.",
            ("experience.reuse.enable", "max_staleness"),
        )


def bench_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    """`mode: bench` without a validation."""
    if config.mode == "bench" and config.missing_validation:
        at = config.missing_validation
        yield Problem(f"mode: bench has nothing to measure: {at} is missing. Add it.", ("mode", at))


def mode_warnings(config: AlgorithmConfig) -> Iterator[str]:
    keys = config.experience
    if not config.is_in_parts:
        if keys.model_fields_set - {"dir"}:
            yield f"experience does nothing with mode: {config.mode}: samples are handed over in memory."
        return
    if config.has_training and config.save_steps <= 0 and not keys.keep:
        yield "save_steps: experience is deleted when a checkpoint is saved, and none will be saved: all of it is kept."


# What the settings of a run with rollouts say against themselves.

SAMPLE_TRACKERS = ("wandb", "mlflow", "swanlab", "tensorboard")
"""Trackers that show recorder.tracked_samples."""
VAL_LENGTH_KEYS = ("val_prompt_length", "val_sequence_length")


def unused_filter_keys(config: RolloutConfig, filters: str) -> Iterator[str]:
    """Yield warnings about keys that matter only after a filter, in a run without one; `filters` is the key that would
    name it."""
    if config.is_use_additional_prompts:
        yield f"is_use_additional_prompts does nothing: no {filters} drops a group."
    if config.is_changed("on_empty") and not config.experience_operators:
        yield f"on_empty does nothing: no {filters} drops a group."


def length_problems(config: RolloutConfig) -> Iterator[Problem]:
    prompt, response, sequence = config.prompt_length, config.response_length, config.sequence_length
    if response is None and sequence is None:
        yield Problem(
            "response_length is missing: set it, or sequence_length (prompt and response together).", LENGTH_KEYS
        )
        return
    if response is not None and sequence is not None and sequence != prompt + response:
        yield Problem(
            f"sequence_length: {sequence} contradicts prompt_length {prompt} + response_length {response} = "
            f"{prompt + response}. Remove one of them: of a YAML of ROLL, where sequence_length counts, "
            "response_length.",
            LENGTH_KEYS,
        )
    elif sequence is not None and sequence <= prompt:
        yield Problem(
            f"sequence_length: {sequence} leaves no room for a response after prompt_length: {prompt}. "
            f"Set it above {prompt}, or lower prompt_length.",
            LENGTH_KEYS,
        )
    val_prompt, val_sequence = config.val_lengths[0], config.val_sequence_length
    if val_sequence is not None and val_sequence <= val_prompt:
        yield Problem(
            f"val_sequence_length: {val_sequence} leaves no room for a response after val_prompt_length: {val_prompt}.",
            LENGTH_KEYS + VAL_LENGTH_KEYS,
        )
