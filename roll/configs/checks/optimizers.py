"""`training_args.optim` before anything starts, and what its moments take."""

from collections.abc import Iterator

from roll.configs.problems import Problem
from roll.configs.sections.training import EIGHT_BIT
from roll.configs.strategies.spec import Choice
from roll.utils.imports import is_installed

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
