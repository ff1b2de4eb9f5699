"""Checks of the agentic part of a configuration: groups, seeds, the algorithm and lengths."""

import math
from collections.abc import Iterator

from roll.configs.checks.pictures import sight_problems
from roll.configs.checks.roles import AGENTIC, switched_off
from roll.configs.checks.rollout import unused_filter_keys
from roll.configs.plan.batch_plan import role_train_plan
from roll.configs.problems import Problem, did_you_mean
from roll.datasets.templates import FORMS, PLAIN, template_name_problem, template_problem, variables_problem
from roll.envs.build import import_problems, tool_problems
from roll.envs.config import MANAGERS, PROXY, STEP, TRAJECTORY, VL_TRAJECTORY
from roll.pipeline.agentic.agentic_config import AgenticConfig, EnvManagerConfig, env_set_problems
from roll.pipeline.agentic.env_checks import (
    blind_problem,
    env_problems,
    env_warnings,
    hub_set,
    managers,
    played,
    program_problems,
    shows_pictures,
    task_place_problems,
)
from roll.pipeline.agentic.tool_checks import tool_code_problems, tool_reports
from roll.run.saving.model_files import known_sight
from roll.run.start.machine import lacks_gpus

ENV_WORKERS = ("roll.pipeline.agentic.environment_worker.EnvironmentWorker",)


def agentic_problems(config: AgenticConfig) -> list[Problem]:
    """Everything of the agentic part that cannot work, whatever the machine."""
    problems = [*env_problems(config), *_seed_problems(config), *_algorithm_problems(config), *_length_problems(config)]
    problems += _manager_problems(
        config, "train_env_manager", config.train_env_manager, "rollout_batch_size", config.rollout_batch_size
    )
    main = config.val_env_manager
    problems += env_set_problems(config.eval_sets, main.tags if main is not None else ())
    if main is not None and config.validates:
        problems += _manager_problems(config, "val_env_manager", main, "val_batch_size", config.val_batch_size)
    for one in config.validated:
        if one.name:
            problems += _tag_problems(config, one.at, one.manager)
            problems += _batch_problems(one.at, one.manager, f"{one.at}.num_episodes", one.num_episodes)
    return problems


def agentic_warnings(config: AgenticConfig) -> list[str]:
    warnings: list[str] = []
    validation = config.val_env_manager.model_fields_set if config.val_env_manager is not None else frozenset()
    for name in ("max_env_num_per_worker", "max_traj_per_env", "group_filter_cls"):
        if name in validation:
            warnings.append(
                f"val_env_manager.{name} does nothing: validation uses the training's processes, and every episode of "
                "it counts."
            )
    sampled = [("actor_infer", config.actor_infer, "train_env_manager")]
    for at, section, sizes in [*sampled, *((one.at, one.manager, one.at) for one in config.validated)]:
        if (section.generating_args.num_return_sequences or 1) > 1:
            warnings.append(f"{at}.generating_args.num_return_sequences does nothing: see {sizes}.group_size.")
    if config.train_env_manager.group_filter_cls is None:
        warnings += unused_filter_keys(config, "group_filter_cls")
    if config.batch_adjust_mode != "padding":
        warnings.append(
            f"batch_adjust_mode: {config.batch_adjust_mode} repeats or drops samples, which biases the gradient; "
            "padding does not."
        )
    plan = role_train_plan(config, "actor_train", config.actor_train)
    if not plan.splits_evenly and not any(env.is_per_turn for env in played(config).values()):
        warnings.append(
            f"rollout_batch_size: {plan.samples_per_step} samples do not split into updates of "
            f"{plan.samples_per_update}. batch_adjust_mode: {config.batch_adjust_mode} makes "
            f"{plan.updates_per_epoch} update{'' if plan.updates_per_epoch == 1 else 's'} of them."
        )
    warnings += [*env_warnings(config), *switched_off(config, AGENTIC)]
    if unplayed := sorted(set(config.custom_envs) - set(played(config))):
        warnings.append(f"custom_envs: {', '.join(unplayed)} is in no tags of an env manager, so it is not used.")
    return warnings


def machine_problems(config: AgenticConfig) -> list[Problem]:
    """Return problems that this machine can find without the users' code: a template's file."""
    key = "actor_train.data_args.template"
    args = config.actor_train.data_args
    wrong = template_problem(args.template, key) or variables_problem(args.template, args.template_kwargs, key)
    problems = [] if wrong is None else [Problem(f"{wrong}.", (key,), "place")]
    if (manager := shows_pictures(config, (VL_TRAJECTORY, PROXY))) is not None:  # programs may send some
        seen = known_sight(config.model_roles)
        is_blind = "actor_train" in seen and seen["actor_train"] is None
        texts = [blind_problem(key, config)] if is_blind and (key := shows_pictures(config)) is not None else []
        texts += () if is_blind else sight_problems(config, "actor_train", seen, lacks_gpus(config))
        problems += [Problem(f"{text}.", (manager,), "place") for text in texts]
    return problems


def code_problems(config: AgenticConfig) -> Iterator[Problem]:
    """Check the users' environments and adapters: each is imported, built once and thrown away."""
    for tag, env in played(config).items():
        at = f"custom_envs.{tag}"
        if env.is_session:
            yield from (program_problems if env.env_manager_cls == PROXY else tool_code_problems)(at, env)
            yield from task_place_problems(at, env)
        elif env.env_manager_cls in MANAGERS and hub_set(env) is None:
            yield from import_problems(at, env)
        if env.tool_wrapper is not None:
            yield from tool_problems(f"{at}.tool_wrapper", env.tool_wrapper)
    for key, manager in managers(config):
        if manager.group_filter_cls is not None:
            from roll.pipeline.agentic.settings import filter_problems  # brings torch

            keys = (f"{key}.group_filter_cls",)
            yield from (Problem(text, keys) for text in filter_problems(manager.group_filter_cls, keys[0]))


def hub_problems(config: AgenticConfig) -> Iterator[Problem]:
    """Check environments that take their questions from the hub: a start loads them."""
    for tag, env in played(config).items():
        if hub_set(env) is not None:
            yield from import_problems(f"custom_envs.{tag}", env)


def unloaded_sets(config: AgenticConfig) -> Iterator[Problem]:
    """The same of a plan, which asks no hub."""
    for tag, env in played(config).items():
        if (name := hub_set(env)) is not None:
            key = f"custom_envs.{tag}.env_config"
            yield Problem(f"{key}.dataset_name: {name}: not checked on the Hugging Face hub.", (key,), "machine")


def reports(config: AgenticConfig) -> Iterator[str]:
    """Yield what a plan does not check: tool servers are not started."""
    for tag, env in played(config).items():
        yield from tool_reports(f"custom_envs.{tag}", env)


# --- groups


def _manager_problems(
    config: AgenticConfig, at: str, manager: EnvManagerConfig, batch_key: str, batch: int
) -> Iterator[Problem]:
    yield from _tag_problems(config, at, manager)
    if manager.worker_cls not in (None, *ENV_WORKERS):
        yield Problem(f"{at}.worker_cls: {manager.worker_cls} is not supported. Remove it.", (f"{at}.worker_cls",))
    if manager.device_mapping is not None:
        yield Problem(
            f"{at}.device_mapping: environments run on the CPU. Remove it; see {at}.max_env_num_per_worker.",
            (f"{at}.device_mapping",),
        )
    if manager.tags:
        yield from _partition_problems(at, manager)
    yield from _batch_problems(at, manager, batch_key, batch)


def _tag_problems(config: AgenticConfig, at: str, manager: EnvManagerConfig) -> Iterator[Problem]:
    if not manager.tags:
        yield Problem(
            f"{at}.tags is missing: name entries of custom_envs ({', '.join(config.custom_envs) or 'there is none'}).",
            (f"{at}.tags",),
        )
    for tag in manager.tags:
        if tag not in config.custom_envs:
            yield Problem(
                f"{at}.tags: there is no custom_envs.{tag}.{did_you_mean(tag, config.custom_envs)} Known: "
                f"{', '.join(config.custom_envs) or 'none'}.",
                (f"{at}.tags", f"custom_envs.{tag}"),
            )
    if len(set(manager.tags)) != len(manager.tags):
        yield Problem(f"{at}.tags names a tag more than once: {', '.join(manager.tags)}.", (f"{at}.tags",))


def _partition_problems(at: str, manager: EnvManagerConfig) -> Iterator[Problem]:
    keys = (f"{at}.num_groups_partition", f"{at}.num_env_groups", f"{at}.tags")
    partition, groups, tags = manager.num_groups_partition, manager.num_env_groups, manager.tags
    if not partition and groups % len(tags):
        text = f"{at}.num_env_groups: {groups} groups do not divide among {len(tags)} tags. Take a multiple of these"
        yield Problem(f"{text}, or set {at}.num_groups_partition.", keys)
    elif partition and len(partition) != len(tags):
        text = f"{at}.num_groups_partition has {len(partition)} entries for {len(tags)} tags ({', '.join(tags)})."
        yield Problem(text, keys)
    elif partition and (sum(partition) != groups or min(partition) < 0):
        yield Problem(
            f"{at}.num_groups_partition: {list(partition)} must be 0 or more each and sum to {at}.num_env_groups: "
            f"{groups}; it sums to {sum(partition)}.",
            keys,
        )


def _batch_problems(at: str, manager: EnvManagerConfig, batch_key: str, batch: int) -> Iterator[Problem]:
    size = manager.group_size
    if batch % size:
        yield Problem(
            f"{batch_key}: {batch} trajectories do not divide into groups of {at}.group_size: {size}. Use a multiple "
            "of it.",
            (batch_key, f"{at}.group_size"),
        )
    elif manager.max_traj_per_env > 0 and manager.num_env_groups * size * manager.max_traj_per_env < batch:
        yield Problem(
            f"{at}.max_traj_per_env: {manager.max_traj_per_env} episodes in each of {manager.num_env_groups} x {size} "
            f"environments are fewer than {batch_key}: {batch}. Set it to "
            f"{math.ceil(batch / (manager.num_env_groups * size))} or more, or to -1.",
            (f"{at}.max_traj_per_env", f"{at}.num_env_groups", f"{at}.group_size", batch_key),
        )


# --- seeds


def _seed_problems(config: AgenticConfig) -> Iterator[Problem]:
    train = config.train_seeds
    ranges = {"train_env_manager": train, **{one.at: one.seeds for one in config.validated}}
    for at, (first, last) in ranges.items():
        if not 0 <= first < last <= 1 << 31:
            yield Problem(
                f"{at}.env_seeds: [{first}, {last}) must be a range of numbers from 0 to 2147483648.",
                (f"{at}.env_seeds",),
            )
            return
    for one in config.validated:
        val = ranges[one.at]
        if train[0] < val[1] and val[0] < train[1]:
            yield Problem(
                f"train_env_manager.env_seeds [{train[0]}, {train[1]}) and {one.at}.env_seeds [{val[0]}, {val[1]}) "
                f"overlap in [{max(train[0], val[0])}, {min(train[1], val[1])}): the validation would use tasks that "
                "were trained on. Give them separate ranges, or set neither.",
                ("train_env_manager.env_seeds", f"{one.at}.env_seeds"),
            )
            return


# --- algorithm and lengths


def _algorithm_problems(config: AgenticConfig) -> Iterator[Problem]:
    yield from _estimator_problems(config)
    if config.ratio_type == "segment" and config.importance_sampling != "segment":
        yield Problem(
            f"ratio_type: segment contradicts importance_sampling: {config.importance_sampling}. Keep one.",
            ("ratio_type", "importance_sampling"),
        )
    norms = config.reward_normalization
    chosen = norms.method is not None or (norms.norm_mean_type, norms.norm_std_type) != ("default", "default")
    if chosen and (config.norm_mean_type != "default" or config.norm_std_type != "default"):
        yield Problem(
            "reward_normalization and norm_mean_type or norm_std_type both say how rewards are normalised. Keep one.",
            ("reward_normalization", "norm_mean_type", "norm_std_type"),
        )
    named = {config.norm_mean_type, config.norm_std_type} - {"default", None}
    if "running" in named or not named <= {*config.estimator.scopes}:
        yield Problem(
            "norm_mean_type and norm_std_type: agentic runs know batch, group and none (leave_one_out: not with "
            "agentic_reinforce).",
            ("norm_mean_type", "norm_std_type"),
        )


def _estimator_problems(config: AgenticConfig) -> Iterator[Problem]:
    estimator, at = config.estimator, f"adv_estimator: {config.adv_estimator}"
    if estimator.needs_greedy or estimator.needs_parts:
        what = "the greedy response to a prompt" if estimator.needs_greedy else "parts of a reward"
        text = f"{at} compares {what}, which episodes do not have. Choose grpo, or agentic_reinforce."
        yield Problem(text, ("adv_estimator",))
    for tag in config.domains:
        if (env := config.custom_envs.get(tag)) is None:
            continue
        is_whole = not env.is_per_turn
        if estimator.steps_only and is_whole:
            wrong, fitting = "credits single steps", STEP
        elif estimator.needs_critic and (env.is_per_turn or env.is_session):
            wrong, fitting = "values the tokens of whole conversations", TRAJECTORY
        elif estimator.weighs_tokens and (env.is_per_turn or env.is_session):
            wrong, fitting = "compares the tokens of whole conversations", TRAJECTORY
        else:
            continue
        key = f"custom_envs.{tag}.env_manager_cls"
        yield Problem(
            f"{at} {wrong}, but {key} is {env.env_manager_cls}. Set it to {fitting}, or choose another estimator.",
            ("adv_estimator", key),
        )
        return


def _length_problems(config: AgenticConfig) -> Iterator[Problem]:
    sequence = config.lengths[2]
    for tag, env in played(config).items():
        if env.max_tokens_per_step is not None and env.max_tokens_per_step >= sequence:
            yield Problem(
                f"custom_envs.{tag}.max_tokens_per_step: {env.max_tokens_per_step} leaves no room for a prompt in "
                f"sequences of {sequence} tokens (sequence_length).",
                (f"custom_envs.{tag}.max_tokens_per_step", "sequence_length", "prompt_length", "response_length"),
            )
    name, key = config.actor_train.data_args.template, "actor_train.data_args.template"
    if name == PLAIN or (name in FORMS and not FORMS[name].has_turns):
        yield Problem(
            f"{key}: {name} does not support several turns. Use native, or the path of a Jinja chat template.", (key,)
        )
    elif (wrong := template_name_problem(name, key)) is not None:
        yield Problem(f"{wrong}.", (key,))
