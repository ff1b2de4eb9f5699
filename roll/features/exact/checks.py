"""`exact_log_probs`: what it cannot do with it, before anything starts."""

from collections.abc import Iterator, Mapping
from math import log2
from typing import Any

from roll.configs.checks.platforms import NO_EXACT_PRODUCTS
from roll.configs.problems import Problem
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.model import ModelArgs
from roll.configs.sections.run import RunConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_facts import EXACT_MIXTURES
from roll.configs.strategies.model_numbers import CHANGING_ROPE, rope_kinds, text_part, type_of, why_no_parts
from roll.configs.tables.families import has_experts
from roll.configs.tables.features import FeaturePlugin
from roll.configs.tables.roles import ACTOR_INFER, ACTOR_TRAIN, REFERENCE, Use
from roll.platforms.table import PLATFORMS, machine_platform

KEY = "exact_log_probs"
ENGINE = "hf_infer"
_STRATEGIES: dict[Use, tuple[str, ...]] = {
    "train": ("fsdp2_train", "deepspeed_train"),
    "generate": (ENGINE,),
    "score": (ENGINE, "fsdp2_infer", "deepspeed_infer"),
}
_DTYPES = ("fp32", "bf16")
WIDTH = 4  # what widths of exact products are a multiple of (roll/models/exact/sizes.py)
_READ = (ACTOR_TRAIN, REFERENCE)  # roles whose config.json is read; the engine has the model of the trainer


def exact_log_prob_problems(config: RunConfig) -> Iterator[Problem]:
    """Finds what would make log-probs of trainer and engine differ in their last bits."""
    if not isinstance(config, AlgorithmConfig) or not config.exact_log_probs:
        return
    platform = PLATFORMS.get(config.platform)
    if platform is not None and not platform.has_exact_products:
        text = f"{KEY}: true: {NO_EXACT_PRODUCTS}. Set it to false (platform: {platform.name})."
        yield Problem(text, (KEY, "platform"))
    roles = {ACTOR_TRAIN: config.actor_train, ACTOR_INFER: config.actor_infer}
    if config.reference is not None and config.needs_reference:
        roles[REFERENCE] = config.reference
    for key, (value, why) in _adapter_obstacles(config.actor_train.model_args).items():
        yield _problem(f"actor_train.model_args.{key}", value, why)
    for role, worker in roles.items():
        name, allowed = role.name, _STRATEGIES[role.use]
        at = f"{name}.strategy_args.strategy_name"
        if worker.strategy_name not in allowed:
            yield _problem(at, worker.strategy_name, f"has kernels of its own. Use {' or '.join(allowed)}")
            continue
        if worker.model_args.dtype not in _DTYPES:
            dtype = f"{name}.model_args.dtype"
            yield _problem(dtype, worker.model_args.dtype, f"is not tested. Use {' or '.join(_DTYPES)}")
        for key, (value, why) in _obstacles(worker).items():
            yield _problem(f"{name}.{key}", value, why)
    train, infer = config.actor_train.model_args, config.actor_infer.model_args
    if train.dtype != infer.dtype:
        yield Problem(
            f"{KEY}: actor_train.model_args.dtype: {train.dtype} and actor_infer.model_args.dtype: {infer.dtype} give "
            f"different numbers. Set them to the same, or {KEY} to false.",
            (KEY, "actor_train.model_args.dtype", "actor_infer.model_args.dtype"),
        )
    if config.kv_on_update == "keep":
        yield _problem("kv_on_update", "keep", "samples over keys and values of old weights. Set it to recompute")
    if config.kl_terms and config.use_kl_loss and config.kl_loss_type == "full":
        yield _problem("kl_loss_type", "full", "compares whole distributions, by another head. Use k1, k2 or k3")


def exact_machine_problems(config: RunConfig) -> Iterator[Problem]:
    """Finds exact passes on devices without kernels for them, where the run is this machine's."""
    if not isinstance(config, AlgorithmConfig) or not config.exact_log_probs or config.platform != "auto":
        return
    if not (platform := machine_platform()).has_exact_products:
        text = f"{KEY}: true: {NO_EXACT_PRODUCTS}, and this machine has devices of platform {platform.name}."
        yield Problem(f"{text} Set it to false, or platform to cpu.", (KEY, "platform"), "machine")


def exact_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Finds models whose log-probs are not exact, by their config.json. Others are refused when they are loaded
    (roll/models/exact/check.py)."""
    text, args = text_part(model), choice.worker.model_args
    if choice.role not in _READ:
        return
    is_known = type_of(text) in EXACT_MIXTURES or not text.get("enable_moe_block", True)
    reasons = {
        "experts, whose exact products know no adapters (lora_target)": has_experts(model) and args.has_lora,
        "experts, which exact passes do not know of this type": has_experts(model) and not is_known,
        "attention that subtracts one half from the other": type_of(text) == "diffllama",
        "rotary frequencies that follow the longest row of a pass (rope_type)": bool(rope_kinds(text) & CHANGING_ROPE),
    }
    if why := why_no_parts(text) or next((f"which has {reason}" for reason, holds in reasons.items() if holds), ""):
        key = f"{choice.role.name}.model_args.model_name_or_path"
        yield Problem(f"{KEY}: true with {args.model_name_or_path} ({key}), {why}. Set {KEY} to false.", (KEY, key))


def _adapter_obstacles(args: ModelArgs) -> dict[str, tuple[object, str]]:
    """The keys of the trainer with which its adapters would add other bits than the engine's: value, and why."""
    if not args.has_lora:
        return {}
    reasons: dict[str, tuple[object, str]] = {}
    scale = args.adapter_alpha / (args.lora_rank**0.5 if args.use_rslora else args.lora_rank)
    if log2(scale) % 1:
        why = f"multiplies what adapters add by {scale:g}, which rounds. Choose it so that this is a power of two"
        reasons["lora_alpha"] = (args.adapter_alpha, why)
    if args.lora_rank % WIDTH:
        reasons["lora_rank"] = (args.lora_rank, f"is not a multiple of {WIDTH}, as widths of exact products are")
    if args.lora_dropout:
        reasons["lora_dropout"] = (args.lora_dropout, "leaves inputs out that the engine has. Set it to 0")
    return reasons


def _problem(key: str, value: object, why: str) -> Problem:
    return Problem(f"{KEY}: {key}: {value} {why}, or set {KEY} to false.", (KEY, key))


def _obstacles(worker: WorkerConfig) -> dict[str, tuple[object, str]]:
    """The keys of a role's section with which its log-probs are not exact: value, and why."""
    args, reasons = worker.model_args, {}
    if args.ulysses_size > 1:
        reasons["model_args.ulysses_size"] = (args.ulysses_size, "divides sequences. Set it to 1")
    if (size := worker.strategy_config.get("ep_size", 1)) != 1:
        key = "strategy_args.strategy_config.ep_size"
        reasons[key] = (size, "sends tokens to the experts of other ranks. Set it to 1")
    zero = worker.strategy_config.get("zero_optimization")
    divides = isinstance(zero, dict) and zero.get("stage") == 3 and zero.get("memory_efficient_linear") is not False
    if divides:
        why = "adds biases after rounding products. Set memory_efficient_linear beside it to false"
        reasons["strategy_args.strategy_config.zero_optimization.stage"] = (3, why)
    if worker.use_torch_compile:
        reasons["use_torch_compile"] = (True, "uses different kernels for different shapes. Set it to false")
    if args.fused_kernel_options.impl_backend != "torch":
        key = "model_args.fused_kernel_options.impl_backend"
        reasons[key] = (args.fused_kernel_options.impl_backend, "has kernels of its own. Set it to torch")
    if args.attn_implementation not in (None, "auto"):
        reasons["model_args.attn_implementation"] = (
            args.attn_implementation,
            "is not the exact attention. Remove it",
        )
    if worker.router_replay.is_on:
        reasons["router_replay.mode"] = (
            worker.router_replay.mode,
            "gives experts that trainer and engine choose alike. Disable it",
        )
    return reasons


PLUGIN = FeaturePlugin(
    problems=exact_log_prob_problems, machine_problems=exact_machine_problems, model_problems=exact_model_problems
)
