"""How much of its GPUs a rollout engine takes for itself, weights included."""

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.spec import ShareKey
from roll.configs.strategies.table import spec_of

SHARED = 0.6
"""The share where another role has states on the same GPU, when nothing is given. What the others leave there while
they wait (contexts, communicators, buckets of weights: a few GB each) and what an engine takes beside its share
(SGLang: activations and CUDA graphs) fits beside it."""


def share_key(worker: WorkerConfig) -> ShareKey | None:
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
