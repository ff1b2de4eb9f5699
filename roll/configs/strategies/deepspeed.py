"""A DeepSpeed configuration: its known keys, what contradicts the plan, and how `auto` is filled.

DeepSpeed accepts unknown top-level keys silently and clips gradients at 1.0 when nobody says otherwise; here the first
is an error and the second follows `max_grad_norm`.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from roll.configs.plan.layout import parallel_sizes
from roll.configs.problems import Problem, did_you_mean
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.training import EIGHT_BIT
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.packing import ranks_problems
from roll.utils.text import short, show

_TABLES: Mapping[str, Any] = yaml.safe_load(
    Path(__file__).with_name("trainer_arguments.yaml").read_text(encoding="utf-8")
)["deepspeed"]
KNOWN_KEYS: Mapping[str, frozenset[str]] = {at: frozenset(keys.split()) for at, keys in _TABLES["known"].items()}
ONE_VALUE: Mapping[str, tuple[object, str]] = {key: (only, why) for key, (only, why) in _TABLES["one_value"].items()}
DTYPE_SECTIONS = {"bf16": "bf16", "fp16": "fp16"}


@dataclass(frozen=True)
class DeepSpeedFacts:
    """Facts of the rest of the configuration that a DeepSpeed configuration must not contradict. The batch sizes and
    the clipping are None for a role that does not learn."""

    dtype: str
    micro_batch_size: int | None = None
    accumulation: int | None = None
    dp_size: int = 1
    max_grad_norm: float | None = None

    @property
    def values(self) -> dict[str, tuple[float, str]]:
        """DeepSpeed's keys that repeat a setting: its value, and where it is set."""
        if self.micro_batch_size is None or self.accumulation is None:
            return {}
        per_update = self.micro_batch_size * self.accumulation * self.dp_size
        return {
            "train_micro_batch_size_per_gpu": (self.micro_batch_size, "training_args.per_device_train_batch_size"),
            "gradient_accumulation_steps": (self.accumulation, "training_args.gradient_accumulation_steps"),
            "train_batch_size": (
                per_update,
                "per_device_train_batch_size x gradient_accumulation_steps x data-parallel ranks",
            ),
            "gradient_clipping": (self.max_grad_norm or 0.0, "max_grad_norm"),
        }


def deepspeed_problems(role: str, config: Mapping[str, Any], facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Unknown keys (top level and the sections people edit), values that contradict the facts, and settings made
    elsewhere."""
    at = f"{role}.strategy_args.strategy_config"
    for section, known in KNOWN_KEYS.items():
        yield from _unknown_keys(at, section, section_of(config, section), known)
    yield from _stage_problems(at, config, learns=facts.micro_batch_size is not None)
    yield from _one_value_problems(at, config)
    if facts.dtype == "fp16":
        yield Problem(
            f"{role}.model_args.dtype: fp16 cannot be used with DeepSpeed here: its range is too small for log-probs "
            "without loss scaling. Use bf16 or fp32.",
            (f"{role}.model_args.dtype",),
        )
    for section, dtype in DTYPE_SECTIONS.items():
        enabled = section_of(config, section).get("enabled", "auto")
        if isinstance(enabled, bool) and enabled != (facts.dtype == dtype):
            yield Problem(
                f"{at}.{section}.enabled: {str(enabled).lower()} contradicts {role}.model_args.dtype: {facts.dtype}. "
                f"Write `{section}.enabled: auto`, or change dtype.",
                (f"{at}.{section}.enabled", f"{role}.model_args.dtype"),
            )
    for key, (value, source) in facts.values.items():
        setting = config.get(key, "auto")
        if setting != "auto" and setting != value:
            where = source if source == "max_grad_norm" else f"{role}.{source}"
            yield Problem(
                f"{at}.{key}: {setting} contradicts {where}: {value}. Remove it or write `auto`.",
                (f"{at}.{key}", where),
            )
    for key in ("optimizer", "scheduler"):
        if config.get(key):
            yield Problem(
                f"{at}.{key}: the optimizer and its schedule are set in {role}.training_args (learning_rate, "
                "adam_beta1, weight_decay, lr_scheduler_type, warmup_steps). Remove this section.",
                (f"{at}.{key}",),
            )


def complete_deepspeed_config(config: Mapping[str, Any], facts: DeepSpeedFacts) -> dict[str, Any]:
    """The configuration to hand to DeepSpeed: `auto` filled from the facts, silent defaults of DeepSpeed written out.

    An `auto` we know nothing about (bucket sizes) is removed, so that DeepSpeed's own default holds.

    Example: {"bf16": {"enabled": "auto"}} with dtype fp32 and max_grad_norm 0 becomes {"bf16": {"enabled": False},
    "gradient_clipping": 0.0, ...}.
    """
    filled = copy.deepcopy(dict(config))
    for section, dtype in DTYPE_SECTIONS.items():
        if section in filled or facts.dtype == dtype:
            filled[section] = dict(filled.get(section) or {}) | {"enabled": facts.dtype == dtype}
    for key, (value, _) in facts.values.items():
        filled[key] = value
    filled.setdefault("zero_optimization", {"stage": 0})
    filled.setdefault("zero_allow_untested_optimizer", True)
    filled.setdefault("steps_per_print", 2**31)
    if section_of(filled, "zero_optimization").get("offload_optimizer"):
        filled.setdefault("zero_force_ds_cpu_optimizer", False)
    return _without_auto(filled)


def offloads_optimizer(config: Mapping[str, Any]) -> bool:
    """Whether the optimizer's states are to live in host memory or on a disk."""
    return section_of(section_of(config, "zero_optimization"), "offload_optimizer").get("device", "none") != "none"


def zero_stage(config: Mapping[str, Any]) -> int:
    """ZeRO stage of a DeepSpeed configuration; 0 when it says nothing."""
    stage = section_of(config, "zero_optimization").get("stage", 0)
    return stage if type(stage) is int else 0


def section_of(config: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The mapping at a dotted path; empty if there is none."""
    for key in filter(None, path.split(".")):
        value = config.get(key)
        config = value if isinstance(value, Mapping) else {}
    return config


def _unknown_keys(at: str, section: str, values: Mapping[str, Any], known: frozenset[str]) -> Iterator[Problem]:
    for key in values:
        if key not in known:
            path = ".".join(filter(None, (at, section, str(key))))
            yield Problem(f"{path}: DeepSpeed has no such key.{did_you_mean(str(key), known)}", (path,))


def _stage_problems(at: str, config: Mapping[str, Any], learns: bool) -> Iterator[Problem]:
    zero = section_of(config, "zero_optimization")
    stage = zero.get("stage", 0)
    if type(stage) is not int or not 0 <= stage <= 3:
        yield Problem(
            f"{at}.zero_optimization.stage: {show(stage)} must be 0, 1, 2 or 3.", (f"{at}.zero_optimization.stage",)
        )
    elif zero.get("offload_param") and section_of(zero, "offload_param").get("device") != "none" and stage != 3:
        yield Problem(
            f"{at}.zero_optimization.offload_param needs stage 3, but stage is {stage}. Set stage: 3 or remove "
            "offload_param.",
            (f"{at}.zero_optimization.stage", f"{at}.zero_optimization.offload_param"),
        )
    elif learns and stage == 0 and section_of(zero, "offload_optimizer").get("device", "none") != "none":
        yield Problem(
            f"{at}.zero_optimization.offload_optimizer does nothing without ZeRO: the optimizer stays on the GPU. Set "
            "stage: 1, 2 or 3, or remove offload_optimizer.",
            (f"{at}.zero_optimization.stage", f"{at}.zero_optimization.offload_optimizer"),
        )


def _one_value_problems(at: str, config: Mapping[str, Any]) -> Iterator[Problem]:
    for path, (only, why) in ONE_VALUE.items():
        section, _, key = path.rpartition(".")
        setting = section_of(config, section).get(key, "auto")
        if setting not in ("auto", only):
            works = "Remove it." if only is None else f"Set it to {short(only)}, or remove it."
            yield Problem(f"{at}.{path}: {show(setting)} cannot be used: {why}. {works}", (f"{at}.{path}",))


def _without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_auto(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if value != "auto"
    }


# What the specs of the deepspeed strategies are asked.


def problems(choice: Choice) -> Iterator[Problem]:
    config = choice.worker.strategy_config
    yield from ranks_problems(choice)
    yield from deepspeed_problems(choice.role.name, config, facts_of(choice))
    args, dtype = choice.worker.training_args, choice.worker.model_args.dtype
    if choice.role.learns and args.optim == "muon" and (zero_stage(config) or dtype != "fp32"):
        key, stage = f"{choice.role.name}.training_args.optim", f"{choice.at}.zero_optimization.stage"
        text = f"{key}: muon needs whole matrices, but ZeRO and bf16 store weights in one flat buffer. Use fsdp2_train"
        yield Problem(f"{text}, or stage: 0 with model_args.dtype: fp32.", (key, stage, choice.name_key))
    if choice.role.learns and args.optim == EIGHT_BIT and offloads_optimizer(config):
        key, at = f"{choice.role.name}.training_args.optim", f"{choice.at}.zero_optimization.offload_optimizer"
        text = f"{key}: {EIGHT_BIT} computes on the GPU, and {at} keeps its states in host memory. Remove one of them."
        yield Problem(text, (key, at))
    if choice.worker.use_torch_compile and zero_stage(config) == 3:
        key, stage = f"{choice.role.name}.use_torch_compile", f"{choice.at}.zero_optimization.stage"
        text = f"{key}: true with {stage}: 3, which gathers the weights of every layer inside of what is compiled."
        yield Problem(f"{text} Use a lower stage, or an fsdp2 strategy.", (key, stage))


def facts_of(choice: Choice) -> DeepSpeedFacts:
    """Return the facts that the role's DeepSpeed configuration must agree with."""
    worker, args = choice.worker, choice.worker.training_args
    if not choice.role.learns:
        return DeepSpeedFacts(worker.model_args.dtype)
    return DeepSpeedFacts(
        dtype=worker.model_args.dtype,
        micro_batch_size=args.per_device_train_batch_size,
        accumulation=args.gradient_accumulation_steps,
        dp_size=parallel_sizes(worker).data,
        max_grad_norm=choice.max_grad_norm,
    )


def saved_facts(worker: WorkerConfig, dp_size: int) -> dict[str, object]:
    """One file per rank, cut by the ZeRO stage. `dp_size` counts those that share sequences, too."""
    ranks = dp_size * worker.model_args.ulysses_size
    return worker.saved_facts | {"dp_size": ranks, "zero_stage": zero_stage(worker.strategy_config)}
