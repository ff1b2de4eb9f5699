"""`use_prefix_sharing` of a role: what it cannot do with it, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from roll.configs.checks.platforms import NO_TREES
from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import FEATURES, Feature
from roll.configs.strategies.table import feature_problem, spec_of
from roll.configs.tables.features import FeaturePlugin
from roll.platforms.table import PLATFORMS, machine_platform

if TYPE_CHECKING:
    from roll.configs.plan.run_plan import RunPlan
    from roll.configs.sections.cluster import WorkerConfig
    from roll.configs.sections.run import RunConfig


def prefix_sharing_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what keeps a role from `use_prefix_sharing: on`."""
    worker, key = choice.worker, f"{choice.role.name}.use_prefix_sharing"
    if worker.use_prefix_sharing != "on":
        return
    if problem := feature_problem(choice, Feature.PREFIX_SHARING, "on"):
        yield problem
        return
    for other, why in obstacles(worker, choice.role.learns).items():
        text = f"{key}: on with {choice.role.name}.{other}, {why}. Remove one of the two."
        yield Problem(text, (key, f"{choice.role.name}.{other}"))


def prefix_sharing_machine_problems(choice: Choice) -> Iterator[Problem]:
    """Finds a role that would share prefixes on devices without kernels for it, where the run is this machine's."""
    worker, key = choice.worker, f"{choice.role.name}.use_prefix_sharing"
    if worker.use_prefix_sharing != "on" or worker.device_mapping is None or choice.platform != "auto":
        return
    if not (platform := machine_platform()).has_tree_attention:
        text = f"{key}: on: {NO_TREES}, and this machine has devices of platform {platform.name}."
        yield Problem(f"{text} Set it to off.", (key, f"{choice.role.name}.device_mapping"), "machine")


def obstacles(worker: WorkerConfig, learns: bool) -> Mapping[str, str]:
    """The keys of a role's section with which prefixes are not shared, and why."""
    args, reasons = worker.model_args, {}
    if args.ulysses_size > 1:
        reasons["model_args.ulysses_size"] = "whose ranks divide rows and cannot divide trees"
    if learns and args.has_lora and args.lora_dropout:
        reasons["model_args.lora_dropout"] = "which would drop the same numbers for all rows of a prefix"
    if args.attn_implementation == "eager":
        reasons["model_args.attn_implementation"] = "eager, which does not support it"
    if args.attn_implementation == "fa2" and worker.use_prefix_sharing == "auto":
        reasons["model_args.attn_implementation"] = "fa2, whose kernel trees do not take"
    if worker.use_torch_compile:
        reasons["use_torch_compile"] = "with which prefix sharing is not tested"
    return reasons


def tree_rows(config: RunConfig, plan: RunPlan, models: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Say which roles share prefixes."""
    platform = machine_platform() if config.platform == "auto" else PLATFORMS[config.platform]
    for role, worker in config.model_roles.items():
        if not worker.shares_prefixes or role not in {*plan.trains, *plan.scoring}:
            continue
        reasons = [f"{key}, {why}" for key, why in obstacles(worker, role in plan.trains).items()]
        if Feature.PREFIX_SHARING not in spec_of(worker.strategy_name).supports:
            reasons = [f"{worker.strategy_name} does not {FEATURES[Feature.PREFIX_SHARING].does}"]
        if worker.device_mapping is not None and not platform.has_tree_attention:
            reasons = [f"{NO_TREES}, and devices are of platform {platform.name}"]
        if plan.shows_pictures:
            reasons.append("rows show pictures")
        if role in models:
            from roll.configs.strategies.model_numbers import text_part, why_no_parts  # where a model is known

            why = why_no_parts(text_part(models[role]))
            reasons += [f"{worker.model_args.model_name_or_path}, {why}"] if why else []
        is_open = worker.use_prefix_sharing == "auto" and role not in models
        if_it_can = " if the model allows it" * is_open
        once = f", common prefixes of rows in a micro batch are computed once{if_it_can}"
        how = f"; off here: {reasons[0]}" if reasons else once
        yield "prefix sharing", f"{role}: {worker.use_prefix_sharing}{how}"


PLUGIN = FeaturePlugin(
    role_problems=prefix_sharing_problems,
    role_machine_problems=prefix_sharing_machine_problems,
    plan_rows=tree_rows,
)
