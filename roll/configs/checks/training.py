"""`model_args.fused_kernel_options`: what a role cannot do with it, before anything starts."""

import math
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.base import Settings, join
from roll.configs.checks.platforms import on_gpus_here
from roll.configs.problems import Problem
from roll.configs.sections.run import RunConfig
from roll.configs.sections.training import EIGHT_BIT
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.spec import HEAD_KERNELS
from roll.configs.strategies.table import feature_problem
from roll.utils.imports import is_installed

_WRONG = (
    "its kernel multiplies the gradient of all tokens by that of the first one where tokens have weights of their own "
    "(liger-kernel 0.8.5; linkedin/Liger-Kernel#968)"
)


def fused_head_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what a role cannot do with its kernel, whatever the machine."""
    options, key = choice.worker.model_args.fused_kernel_options, _key(choice)
    backend = options.impl_backend
    if options.model_fields_set and choice.role.head != "lm":
        at = key.rpartition(".")[0]
        yield Problem(f"{at}: {choice.role.name} computes no log-probs, and has no use for it. Remove it.", (at,))
    elif backend == "liger":
        yield Problem(f"{key}: liger: {_WRONG}. Use {' or '.join(HEAD_KERNELS)} on GPUs, or torch.", (key,))
    elif backend != "torch" and (problem := feature_problem(choice, Feature.FUSED_HEAD, backend)):
        yield problem


def fused_head_machine_problems(choice: Choice) -> Iterator[Problem]:
    """Yield what this machine lacks for the fused head, if the run is this machine's."""
    backend, key = choice.worker.model_args.fused_kernel_options.impl_backend, _key(choice)
    package = HEAD_KERNELS.get(backend)
    if package is None:
        return
    if not is_installed(package.module):
        text = f"{backend} needs the package {package.module}, which is not installed. Install it: {package.install}"
        yield Problem(f"{key}: {text}", (key,), "machine")
    if choice.num_nodes == 1 and not on_gpus_here():
        yield Problem(f"{key}: {backend} runs on GPUs only, and this machine has none. Use torch.", (key,), "machine")


def _key(choice: Choice) -> str:
    return f"{choice.role.name}.model_args.fused_kernel_options.impl_backend"


# `model_args.enable_activation_offload` before anything starts.


def activation_offload_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what keeps a role that learns from moving activations."""
    key = f"{choice.role.name}.model_args.enable_activation_offload"
    if not choice.worker.model_args.enable_activation_offload:
        return
    if problem := feature_problem(choice, Feature.ACTIVATION_OFFLOAD, "true"):
        yield problem
    if choice.worker.use_torch_compile:
        other = f"{choice.role.name}.use_torch_compile"
        text = f"{key}: true with {other}: true, whose kernels decide themselves what is kept. Set one to false."
        yield Problem(text, (key, other))


# `model_args.recompute_granularity` and `disable_gradient_checkpointing` before anything starts.


def recompute_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what keeps a role that learns from computing a part of its activations again."""
    args, key = choice.worker.model_args, f"{choice.role.name}.model_args.recompute_granularity"
    value = args.recompute_granularity
    if "recompute_granularity" not in args.model_fields_set:
        return
    if problem := feature_problem(choice, Feature.SELECTIVE_RECOMPUTE, value):
        yield problem
        return
    others = {
        "disable_gradient_checkpointing": args.disable_gradient_checkpointing
        and "nothing is computed again. Remove one of the two",
        "gradient_checkpointing_use_reentrant": value == "selective"
        and args.gradient_checkpointing_use_reentrant
        and "that form of checkpointing computes whole blocks again. Set it to false",
        "enable_activation_offload": value == "selective"
        and args.enable_activation_offload
        and "the products that are kept stay on the device. Use full, or set it to false",
    }
    for name, why in others.items():
        if why:
            other = f"{choice.role.name}.model_args.{name}"
            yield Problem(f"{key}: {value} with {other}: true: {why}.", (key, other))


# Types whose classes in transformers (5.x) cannot compute activations again.
WITHOUT_CHECKPOINTING = frozenset(
    ["cpmant", "ctrl", "gpt_neox_japanese", "jetmoe", "openai-gpt", "reformer", "xlm", "xlnet"]
)


def checkpointing_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """Finds a role that learns and would compute activations again, where the model's class cannot."""
    kind, key = model.get("model_type"), f"{choice.role.name}.model_args.disable_gradient_checkpointing"
    if kind in WITHOUT_CHECKPOINTING and not choice.worker.model_args.disable_gradient_checkpointing:
        text = f"{key}: transformers has no gradient checkpointing for {kind} models. Set it to true."
        yield Problem(text, (key, f"{choice.role.name}.model_args.model_name_or_path"))


# `use_torch_compile` before anything starts.

_COMPILERS = ("g++", "clang++", "c++")


def compile_problems(choice: Choice) -> Iterator[Problem]:
    """Finds a role whose strategy does not compile, whatever the machine."""
    if choice.worker.use_torch_compile and (problem := feature_problem(choice, Feature.TORCH_COMPILE, "true")):
        yield problem


def compile_machine_problems(choice: Choice) -> Iterator[Problem]:
    """Yield what this machine lacks for torch.compile, if the run is this machine's."""
    key = f"{choice.role.name}.use_torch_compile"
    if not choice.worker.use_torch_compile or choice.num_nodes > 1 or on_gpus_here():
        return
    if not shutil.which(os.environ.get("CXX", "")) and not any(map(shutil.which, _COMPILERS)):
        yield Problem(
            f"{key}: torch.compile writes C++ for a CPU, and there is no compiler ({', '.join(_COMPILERS)}, or CXX). "
            "Install one (apt install g++), or set it to false.",
            (key,),
            "machine",
        )


# `training_args.optim` before anything starts, and what its moments take.

_BLOCK = 256  # elements that share a scale in fp32
_LEAST = 4096  # elements; smaller tensors keep moments in fp32


def optimizer_machine_problems(choice: Choice) -> Iterator[Problem]:
    """The package that an optimizer needs, where it is not installed."""
    key = f"{choice.role.name}.training_args.optim"
    if choice.role.learns and choice.worker.training_args.optim == EIGHT_BIT and not is_installed("bitsandbytes"):
        yield Problem(
            f"{key}: {EIGHT_BIT} needs the package bitsandbytes, which is not installed. Install it: pip install "
            "'bitsandbytes>=0.49', or use adamw_torch.",
            (key,),
            "machine",
        )


def moment_bytes(optim: str, num_elements: float, full: int = 4) -> float:
    """Bytes of both moments of AdamW for one tensor. Without 8-bit moments, each number has `full` bytes.

    Example: 65,536 elements: 524,288 bytes; with 8 bits 2 x (65,536 + 4 x 256) = 133,120.
    """
    if optim != EIGHT_BIT or num_elements < _LEAST:
        return 2 * full * num_elements
    return 2 * (num_elements + 4 * -(-num_elements // _BLOCK))


# `optimizer_from`: a role that begins with the optimizer of another run.


def optimizer_from_key(role: str) -> str:
    return f"{role}.training_args.optimizer_from"


def optimizer_from_problems(choice: Choice) -> Iterator[Problem]:
    """Finds what keeps a role from beginning with the optimizer of another run, whatever the machine."""
    worker, key = choice.worker, optimizer_from_key(choice.role.name)
    source = worker.training_args.optimizer_from
    if source is None:
        return
    if problem := feature_problem(choice, Feature.OPTIMIZER_FROM, source):
        yield problem
    elif worker.model_args.has_lora:
        yield Problem(
            f"{key}: does not work with lora_target: the run trains new adapters, for which the saved optimizer has "
            "no state. Remove optimizer_from or lora_target.",
            (key, f"{choice.role.name}.model_args.lora_target"),
        )


_MEANT: Mapping[str, tuple[float, float, str]] = {
    "training_args.learning_rate": (1e-12, 0.1, "weights stay as they are below 1e-12, and are lost above 0.1"),
    "training_args.weight_decay": (0.0, 1.0, "0.01 to 0.1 are usual"),
    "pg_clip": (0.0, 1.0, "the ratio is never below 0, so nothing is clipped there"),
    "generating_args.temperature": (0.0, 5.0, "tokens are drawn nearly at random above 5"),
    "max_grad_norm": (1e-6, math.inf, "every gradient is scaled to nothing; 0 switches it off"),
    "timeout_s": (0.01, math.inf, "nothing ends in that time"),
}
"""Keys of sections, the values that can be meant, and what happens outside."""


def unlikely_value_warnings(config: RunConfig) -> Iterator[str]:
    """Yield values that are allowed and can hardly be meant."""
    sections: dict[str, Settings] = {"": config, **config.sections}
    for field in type(config).model_fields:
        if isinstance(inner := config.value(field), Mapping):
            sections |= {f"{field}.{name}": each for name, each in inner.items() if isinstance(each, Settings)}
    for name, section in sections.items():
        for key, (least, most, why) in _MEANT.items():
            value = _value(section, key)
            is_off = key == "max_grad_norm" and value == 0
            if isinstance(value, int | float) and not is_off and not least <= value <= most:
                yield f"{join(name, key)}: {value:g} can hardly be meant: {why}."


def _value(section: Settings, key: str) -> object:
    value: object = section
    for part in key.split("."):
        value = value.value(part) if isinstance(value, Settings) and part in type(value).model_fields else None
    return value
