"""How much of its GPUs a rollout engine takes for itself, weights included."""

from collections.abc import Mapping
from dataclasses import dataclass

from roll.configs.cluster import WorkerConfig

SHARED = 0.6
"""The share where another role has states on the same GPU, when nothing is given. What the others leave there while
they wait (contexts, communicators, buckets of weights: a few GB each) and what an engine takes beside its share
(SGLang: activations and CUDA graphs) fits beside it."""


@dataclass(frozen=True)
class ShareKey:
    """The engine argument that sets the share. `own_default`: of an engine alone on its GPUs. `holds_everything`:
    activations and graphs come out of the share as well."""

    name: str
    own_default: float
    holds_everything: bool


SHARE_KEYS: Mapping[str, ShareKey] = {
    "vllm": ShareKey("gpu_memory_utilization", own_default=0.92, holds_everything=True),
    # SGLang computes its default from the GPU and its settings; this is about what comes out on 80 GB.
    "sglang": ShareKey("mem_fraction_static", own_default=0.88, holds_everything=False),
}


def given_share(worker: WorkerConfig) -> float | None:
    """The share that strategy_config asks for."""
    key = SHARE_KEYS.get(worker.strategy_name or "")
    value = worker.strategy_config.get(key.name) if key else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def default_share(worker: WorkerConfig, shares_devices: bool) -> dict[str, float]:
    """The argument that an engine on GPUs gets when nothing is given: none where it is alone, so that the engine's own
    default holds.

    Example: vllm on GPUs that a trainer uses as well gets {"gpu_memory_utilization": 0.6}.
    """
    key = SHARE_KEYS.get(worker.strategy_name or "")
    if key is None or not shares_devices or worker.strategy_config.get(key.name) is not None:
        return {}
    return {key.name: SHARED}
