"""`use_prefix_sharing` of a role: what it cannot do with it, before anything starts."""

from collections.abc import Iterator, Mapping

from roll.configs.checks.platforms import NO_TREES
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.table import feature_problem
from roll.platforms.table import machine_platform


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
    if worker.strategy_config.get("tensor_parallel_size", 1) != 1:
        reasons["strategy_args.strategy_config.tensor_parallel_size"] = "with which prefix sharing is not tested"
    if learns and args.has_lora and args.lora_dropout:
        reasons["model_args.lora_dropout"] = "which would drop the same numbers for all rows of a prefix"
    if args.attn_implementation == "eager":
        reasons["model_args.attn_implementation"] = "eager, which does not support it"
    if args.attn_implementation == "fa2" and worker.use_prefix_sharing == "auto":
        reasons["model_args.attn_implementation"] = "fa2, whose kernel trees do not take"
    if worker.use_torch_compile:
        reasons["use_torch_compile"] = "with which prefix sharing is not tested"
    return reasons
