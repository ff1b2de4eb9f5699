"""Environment variables that change what a role computes, or the processes and devices that it is given.

Strategies add those of their engines (`StrategySpec.variables`). The tables have those that images and tutorials set. A
variable can come from `system_envs`, or from the
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
    # of torch_npu, on Atlas A2 and A3
    "INF_NAN_MODE_ENABLE": VariableRule(_SATURATES, ("1",)),
    "INF_NAN_MODE_FORCE_DISABLE": VariableRule(_SATURATES),
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

_HUB = "the engine would look for its model elsewhere than the trainer: set model_download_type: MODELSCOPE"
_PROCESSES = "the worker starts and watches the engine's processes, on one node and on its own devices"
_LENGTH = (
    "positions beyond the model's would be sampled from: set max_position_embeddings, and a rope that reaches there, "
    "in model_args.model_config_kwargs, which trainers read as well"
)
_FEWER_BITS = "log-probs in fewer bits were never tested here"

VLLM: Mapping[str, VariableRule] = {
    "VLLM_BATCH_INVARIANT": VariableRule("set batch_invariant in strategy_config", is_ours=True),
    "VLLM_FLOAT32_MATMUL_PRECISION": VariableRule(_FEWER_BITS, ("highest",)),
    "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": VariableRule(_FEWER_BITS, (*OFF, "none"), is_ours=True),
    # With AITER on, both are on by default, for attention with latent keys and values, also of unquantised models.
    "VLLM_ROCM_USE_AITER_FP8BMM": VariableRule(_FEWER_BITS, is_ours=True),
    "VLLM_ROCM_USE_AITER_FP4BMM": VariableRule(_FEWER_BITS, is_ours=True),
    "VLLM_USE_MODELSCOPE": VariableRule(_HUB),
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": VariableRule(_LENGTH),
    "VLLM_DP_SIZE": VariableRule("add devices to device_mapping for more engines", ("1",)),
    "VLLM_WORKER_MULTIPROC_METHOD": VariableRule(_PROCESSES, ("spawn",), is_ours=True),
    "VLLM_HOST_IP": VariableRule(_PROCESSES, ("127.0.0.1",), is_ours=True),
}

SGLANG: Mapping[str, VariableRule] = {
    "SGLANG_RETURN_ORIGINAL_LOGPROB": VariableRule(
        "log-probs must be those of the distribution that was sampled from, at its temperature"
    ),
    "SGLANG_USE_MODELSCOPE": VariableRule(_HUB),
    # INT8 in AMD's images of SGLang
    "ROCM_QUICK_REDUCE_QUANTIZATION": VariableRule(_FEWER_BITS, ("none",), is_ours=True),
    # With AITER on a gfx95 it is on by default, for attention with latent keys and values.
    "SGLANG_AITER_FP8_PREFILL_ATTN": VariableRule(_FEWER_BITS, is_ours=True),
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": VariableRule(
        "the engine needs spare positions, and roll checks the length itself", ("1", "true", "yes", "y"), is_ours=True
    ),
    "SGLANG_USE_CPU_ENGINE": VariableRule("the role's device_mapping says", (), is_ours=True),
}


def refused_variables(rules: Mapping[str, VariableRule], variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables whose values are refused, and why, in the order of `variables`."""
    for name, value in variables.items():
        rule = rules.get(name)
        if rule is None or not value.strip() or value.strip().lower() in rule.fine:
            continue
        fine = " or ".join(each for each in rule.fine if each not in OFF[1:])
        yield name, f"{rule.reason}. Remove it{f', or set it to {fine}' if fine else ''}."


def inherited(rules: Mapping[str, VariableRule]) -> dict[str, VariableRule]:
    """Return the rules that also hold for a worker's whole environment: roll sets the other variables itself."""
    return {name: rule for name, rule in rules.items() if not rule.is_ours}
