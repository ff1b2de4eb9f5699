"""What rollouts that run ahead of training ask of a run."""

from collections.abc import Collection, Iterator

from roll.configs.plan.derive import rollout_log_probs_are_full, weighs_importance
from roll.configs.plan.layout import devices_apart
from roll.configs.plan.rollout_bounds import groups_ahead, oldest_allowed, sync_interval
from roll.configs.problems import Problem, ids_text
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.tables.roles import ACTOR_TRAIN

RATIO, STALENESS, INTERVAL = "async_generation_ratio", "max_staleness", "actor_train.model_update_frequency"
KV, PARTIAL = "kv_on_update", "partial_gpu_mode"
UNFINISHED, GRACE, ADDITIONAL = "unfinished_groups", "unfinished_grace_s", "max_additional_running_prompts"
WEIGHT = "train_infer_correction.is_weight.enabled"


def ahead_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    yield from _bounds_problems(config)
    if config.unfinished_groups != "carry" and config.max_staleness:
        yield Problem(
            f"{UNFINISHED}: {config.unfinished_groups} and {STALENESS}: {config.max_staleness}: no group is carried "
            f"into a later step, so none gets old. Remove {STALENESS}, or set {UNFINISHED}: carry.",
            (UNFINISHED, STALENESS),
        )
    if config.runs_ahead:
        yield from _judge_problems(config)
    if config.async_generation_ratio and config.rollout_mock.replays:
        yield Problem(
            f"{RATIO}: {config.async_generation_ratio:g}: with rollout_mock.mode: mock nothing is sampled ahead. Set "
            f"{RATIO}: 0.",
            (RATIO, "rollout_mock"),
        )


def _bounds_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    """Groups that no step could take before they are too old: a step would wait for ever."""
    ratio, interval, oldest = config.async_generation_ratio, sync_interval(config), oldest_allowed(config)
    if not config.runs_ahead:
        if oldest < interval - 1:
            yield Problem(
                f"{STALENESS}: {oldest} cannot be kept with {INTERVAL}: {interval}: answers are up to {interval - 1} "
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
        f"before one is {oldest + 1} {_steps(oldest + 1)} old: a step would wait for ever. Set {STALENESS}: "
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


def _overlap_warnings(config: AlgorithmConfig) -> Iterator[str]:
    """Devices on which nothing happens while another role has its turn on others."""
    engines, is_partial = config.actor_infer, False
    for role, common in _sharing(config):
        own = sorted({*(engines.device_mapping or ())} - {*common})
        is_partial = is_partial or bool(own)
        if own and config.partial_gpu_mode and not _staying(config, common):
            yield (
                f"actor_infer has devices {ids_text(own)} that {role} does not use, but each of its "
                f"{engines.num_workers} engines of {engines.num_gpus_per_worker} devices (num_gpus_per_worker) also "
                f"stands on some of {ids_text(common)}: all leave while {role} works. Order the ids of "
                "actor_infer.device_mapping so that some engine uses none of these."
            )
    if not config.partial_gpu_mode and not is_partial:
        yield "partial_gpu_mode: false does nothing: no role shares a part of the devices of actor_infer."


def _sharing(config: AlgorithmConfig) -> Iterator[tuple[str, list[int]]]:
    """Roles with a model on the engines' devices, with those devices."""
    engines = set(config.actor_infer.device_mapping or ())
    for role, worker in config.model_roles.items():
        common = sorted(engines & set(worker.device_mapping or ()))
        if worker is not config.actor_infer and common:
            yield role, common


def ahead_warnings(config: AlgorithmConfig, old_log_probs_are_own: bool) -> Iterator[str]:
    """`old_log_probs_are_own`: they are of the weights that learn, whatever weights sampled."""
    oldest = oldest_allowed(config) if config.runs_ahead else sync_interval(config) - 1
    if oldest and old_log_probs_are_own and not weighs_importance(config):
        key = f"{RATIO}: {config.async_generation_ratio:g}" if config.runs_ahead else f"{INTERVAL}: {oldest + 1}"
        yield (
            f"{key}: answers are up to {oldest} {_steps(oldest)} older than the weights that learn from them, and old "
            "log-probs are the trainer's own, so that nothing corrects for it. See "
            "force_disable_old_logprobs_recompute and train_infer_correction."
        )
    is_default = config.train_infer_correction.is_weight.enabled is None
    if config.runs_ahead and is_default and not rollout_log_probs_are_full(config):
        yield (
            f"{WEIGHT} is on by itself where rollouts run ahead, but stays off here: the engine's log-probs are not "
            "those of the whole distribution."
        )
    if config.runs_ahead:
        yield from _overlap_warnings(config)
    yield from _idle_keys(config)


def _idle_keys(config: AlgorithmConfig) -> Iterator[str]:
    ratio, unfinished = config.async_generation_ratio, config.unfinished_groups
    if not config.runs_ahead:
        why = f"{UNFINISHED} is {unfinished}, so no token is old" if ratio else f"{RATIO} is 0"
        for key in (STALENESS, "max_token_staleness", KV, PARTIAL):
            if config.is_changed(key):
                yield f"{key} does nothing: {why}."
    elif config.kv_on_update == "keep" and any(
        config.roles[role] is ACTOR_TRAIN and not (config.partial_gpu_mode and _staying(config, common))
        for role, common in _sharing(config)
    ):
        yield f"{KV}: keep does nothing: keys and values are dropped when engines free their devices for actor_train."
    if not ratio:
        for key in (UNFINISHED, GRACE):
            if config.is_changed(key):
                yield f"{key} does nothing: {RATIO} is 0, so no step starts more groups than it takes."
    if config.max_additional_running_prompts:
        if not config.is_use_additional_prompts:
            yield f"{ADDITIONAL} does nothing: is_use_additional_prompts is off."
        elif ratio:
            yield f"{ADDITIONAL} does nothing: the groups of {RATIO} run in any case."


def _steps(count: int) -> str:
    return "step" if count == 1 else "steps"
