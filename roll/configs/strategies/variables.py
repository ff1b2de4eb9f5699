"""Environment variables that change what a role computes, or the processes and devices that it is given.

Strategies add those of their engines (`StrategySpec.variables`). A variable can come from `system_envs`, or from the
shell or image in which a run or Ray was started: its processes inherit those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from roll.platforms.table import ACCELERATORS

OFF = ("0", "false", "no", "n", "off")
"""Values that switch a variable off. An empty one counts as not set."""


@dataclass(frozen=True)
class VariableRule:
    """Why a variable is refused, and the values that are fine, in small letters. `is_ours`: roll sets the variable for
    every worker, so that only `system_envs` could change it."""

    reason: str
    fine: tuple[str, ...] = OFF
    is_ours: bool = False


def variable_rules(reason: str, names: str, *fine: str, is_ours: bool = False) -> dict[str, VariableRule]:
    """Return one rule for several variables, `names` with spaces between them; `fine` values beside OFF."""
    return dict.fromkeys(names.split(), VariableRule(reason, OFF + fine, is_ours))


_TF32 = "fp32 products would have the 10 bits of TF32, and log-probs of engine and trainer would drift apart"
_SATURATES = (
    "what overflows would be the largest number or 0 instead of infinite or NaN, and no update be left out for it"
)
_PLACES = "roll sets it for each worker, by the role's device_mapping and num_gpus_per_worker"

COMMON: Mapping[str, VariableRule] = {
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": VariableRule(_TF32, is_ours=True),  # on in NVIDIA's images of PyTorch
    "NVIDIA_TF32_OVERRIDE": VariableRule(_TF32),
    **dict.fromkeys(
        ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"),
        VariableRule("fp32 products on CPUs would have fewer bits", ("strict",)),
    ),
    "TORCHINDUCTOR_USE_FAST_MATH": VariableRule("compiled exponentials and divisions would be approximate"),
    **variable_rules("linear attention would approximate exponentials", "FLA_USE_FAST_OPS"),
    # of torch_npu, on Atlas A2 and A3
    "INF_NAN_MODE_ENABLE": VariableRule(_SATURATES, ("1",)),
    "INF_NAN_MODE_FORCE_DISABLE": VariableRule(_SATURATES),
    "FLA_TRIL_PRECISION": VariableRule("linear attention would have the 10 bits of TF32", ("ieee",)),
    **dict.fromkeys(
        (
            *(platform.visible_variable for platform in ACCELERATORS),
            *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DS_ACCELERATOR"),
        ),
        VariableRule(_PLACES, (), is_ours=True),
    ),
}
"""Rules of every role with a model. Triton's and torch's other variables change speed or the last bits of a sum."""

AGREED = ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_ALGO", "NCCL_PROTO")
"""Variables that the ranks of one communicator must agree on, or its first use fails or hangs."""

_NEW_PREFIX = {"SGL_": "SGLANG_"}  # SGLang 0.5.23 renames variables with the old one as it is imported


def refused_variables(rules: Mapping[str, VariableRule], variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables whose values are refused, and why, in the order of `variables`."""
    for name, value in variables.items():
        rule = rules.get(name) or rules.get(_renamed(name))
        if rule is None or not value.strip() or value.strip().lower() in rule.fine:
            continue
        fine = " or ".join(each for each in rule.fine if each not in OFF[1:])
        yield name, f"{rule.reason}. Remove it{f', or set it to {fine}' if fine else ''}."


def inherited(rules: Mapping[str, VariableRule]) -> dict[str, VariableRule]:
    """Return the rules that also hold for a worker's whole environment: roll sets the other variables itself."""
    return {name: rule for name, rule in rules.items() if not rule.is_ours}


def _renamed(name: str) -> str:
    for old, new in _NEW_PREFIX.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
