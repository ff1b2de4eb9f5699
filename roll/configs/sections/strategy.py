"""Which backend runs a role, and that backend's own settings."""

from typing import Any, Protocol

from roll.configs.base import Settings, setting
from roll.configs.strategies.table import spec_of


class Sampling(Protocol):
    """What of a sampling's settings bears on log-probs."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def min_new_tokens(self) -> int: ...
    @property
    def repetition_penalty(self) -> float: ...


def narrowing_settings(strategy_name: str | None, sampling: Sampling) -> tuple[str, ...]:
    """The settings in use with which this engine's log-probs are not those of the whole distribution at the sampling
    temperature, as a trainer computes them: only tokens that could be drawn count in them.

    Example: top_p 0.9 gives ("top_p",) with vllm and () with sglang, which takes log-probs before it cuts.
    """
    in_use = {
        "top_p": sampling.top_p < 1,
        "top_k": sampling.top_k > 0,
        "min_new_tokens": sampling.min_new_tokens > 0,
        "repetition_penalty": sampling.repetition_penalty != 1,
    }
    return tuple(name for name in spec_of(strategy_name).narrows if in_use[name])


ANSWERS_AT_ONCE = 128
ANSWERS_AT_ONCE_ON_GPUS = 512
"""Default of vLLM and SGLang on GPUs: decoding grows hardly slower up to there (by arithmetic, not measured: a step of
a 7B model reads 15 GB of weights for 128 answers as for 512). Their sampler takes .3 GB of logits for each copy."""


def answers_at_once(given: int | None, strategy_name: str | None, on_gpus: bool) -> int:
    """Answers in flight in one engine: what max_running_requests says, or what suits the engine and its device.

    Example: (None, "vllm", True) gives 512; (None, "hf_infer", True) and (None, "vllm", False) give 128.
    """
    if given is not None:
        return given
    has_paged_cache = spec_of(strategy_name).share is not None
    return ANSWERS_AT_ONCE_ON_GPUS if on_gpus and has_paged_cache else ANSWERS_AT_ONCE


class StrategyArgs(Settings):
    """`strategy_args` of a role."""

    strategy_name: str = setting(
        ...,
        "The backend: deepspeed_train, fsdp2_train or megatron_train learn; hf_infer, deepspeed_infer, fsdp2_infer and "
        "megatron_infer score; vllm, sglang and hf_infer generate. Or one of your own, package.module:SPEC "
        "(docs/adding_a_strategy.md). Which trainer: docs/trainers.md. Required.",
    )
    strategy_config: dict[str, Any] = setting(
        {},
        "The backend's own settings: a DeepSpeed configuration (usually `${deepspeed_zero2}` from a fragment), "
        "the keys of FSDP2 (below), Megatron's parallel sizes, or arguments of the rollout engine. On GPUs that "
        "another role uses as well, gpu_memory_utilization (vllm) or mem_fraction_static (sglang) is 0.6 unless given.",
    )
