"""`model_args.fused_kernel_options`: what a role cannot do with it, before anything starts."""

from collections.abc import Iterator

from roll.configs.checks.platforms import on_gpus_here
from roll.configs.problems import Problem
from roll.configs.sections.training import EIGHT_BIT
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.spec import HEAD_KERNELS
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


# Keys of a role that contradict each other, whatever its strategy.


def conflict_problems(choice: Choice) -> Iterator[Problem]:
    """Finds ways to save memory that a role that learns cannot combine."""
    worker, args = choice.worker, choice.worker.model_args
    offloads, granularity = args.enable_activation_offload, args.recompute_granularity
    is_given, is_selective = "recompute_granularity" in args.model_fields_set, granularity == "selective"
    offload, recompute = "model_args.enable_activation_offload", "model_args.recompute_granularity"
    conflicts = (
        (offload, "true", "use_torch_compile", offloads and worker.use_torch_compile),
        (recompute, granularity, "model_args.disable_gradient_checkpointing",
         is_given and args.disable_gradient_checkpointing),
        (recompute, granularity, "model_args.gradient_checkpointing_use_reentrant",
         is_selective and args.gradient_checkpointing_use_reentrant),
        (recompute, granularity, offload, is_selective and offloads),
    )  # fmt: skip
    for key, value, other, is_there in conflicts:
        if is_there:
            key, other = f"{choice.role.name}.{key}", f"{choice.role.name}.{other}"
            yield Problem(f"{key}: {value} does not go with {other}: true. Remove one of the two.", (key, other))


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
