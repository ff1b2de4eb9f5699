"""Limits of a rollout engine: responses at once, its share of the GPUs, and the sampling whose log-probs it knows."""

from typing import Protocol

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.spec import GpuShareKey
from roll.configs.strategies.table import spec_of


class Sampling(Protocol):
    """Settings of sampling that affect log-probs."""

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
    in_use = sampling_cuts(sampling)
    return tuple(name for name in spec_of(strategy_name).truncating_sampling_keys if name in in_use)


def sampling_cuts(sampling: Sampling) -> tuple[str, ...]:
    """The settings in use that change what is drawn beside the temperature."""
    in_use = {
        "top_p": sampling.top_p < 1,
        "top_k": sampling.top_k > 0,
        "min_new_tokens": sampling.min_new_tokens > 0,
        "repetition_penalty": sampling.repetition_penalty != 1,
    }
    return tuple(name for name, is_set in in_use.items() if is_set)


ANSWERS_AT_ONCE = 128
ANSWERS_AT_ONCE_ON_GPUS = 512
"""Default of vLLM and SGLang on GPUs: decoding grows hardly slower up to there (by arithmetic, not measured: a step of
a 7B model reads 15 GB of weights for 128 answers as for 512). Their sampler takes .3 GB of logits for each copy."""


def answers_limit(configured: int | None, worker: WorkerConfig, on_gpus: bool) -> tuple[int, str]:
    """Answers in flight in one engine, and the key of strategy_config that says so; no key: max_running_requests says
    so, or what suits the engine and its device.

    Example: (None, vllm, True) gives 512; (None, hf_infer, True) and (None, vllm, False) give 128; (256, vllm with
    max_num_seqs: 64, True) gives 64 and max_num_seqs.
    """
    spec = spec_of(worker.strategy_name)
    has_paged_cache = spec.share is not None
    suits = ANSWERS_AT_ONCE_ON_GPUS if on_gpus and has_paged_cache else ANSWERS_AT_ONCE
    own = [(value, key) for key in spec.limit_keys if type(value := worker.strategy_config.get(key)) is int]
    return min([*own, (configured or suits, "")], key=lambda limit: limit[0])


def answers_at_once(configured: int | None, worker: WorkerConfig, on_gpus: bool) -> int:
    """The number of `answers_limit`."""
    return answers_limit(configured, worker, on_gpus)[0]


# How much of its GPUs a rollout engine takes for itself, weights included.

SHARED = 0.6
"""The share where another role has states on the same GPU, when nothing is given. What the others leave there while
they wait (contexts, communicators, buckets of weights: a few GB each) and what an engine takes beside its share
(SGLang: activations and CUDA graphs) fits beside it."""


def share_key(worker: WorkerConfig) -> GpuShareKey | None:
    """The argument of this role's engine."""
    return spec_of(worker.strategy_name).share


def given_share(worker: WorkerConfig) -> float | None:
    """The share that strategy_config asks for."""
    key = share_key(worker)
    value = worker.strategy_config.get(key.name) if key else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def default_share(worker: WorkerConfig, shares_devices: bool) -> dict[str, float]:
    """The argument that an engine on GPUs gets when nothing is given: none where it is alone, so that the engine's own
    default holds.

    Example: vllm on GPUs that a trainer uses as well gets {"gpu_memory_utilization": 0.6}.
    """
    key = share_key(worker)
    if key is None or not shares_devices or worker.strategy_config.get(key.name) is not None:
        return {}
    return {key.name: SHARED}
