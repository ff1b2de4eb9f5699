"""How the workers of a role divide its work: data, tensor, pipeline and context parallel sizes."""

from collections.abc import Iterator
from dataclasses import dataclass

from roll.configs.cluster import WorkerConfig
from roll.configs.problems import Problem, show

MEGATRON_SIZES = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
    "expert_tensor": "expert_tensor_parallel_size",
}


@dataclass(frozen=True)
class ParallelSizes:
    """Sizes with data x tensor x pipeline x context = ranks. The expert sizes divide the ranks of a pipeline stage
    once more, for the experts' weights alone: they do not divide the batch.

    Example: 8 ranks of megatron_train with tensor 2 and pipeline 2 have data 2; with expert 2 as well, still 2.
    """

    data: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1


def parallel_sizes(worker: WorkerConfig) -> ParallelSizes:
    """Sizes of a role. Engines that generate count a whole engine as one data-parallel rank."""
    if not (worker.strategy_name or "").startswith("megatron"):
        return ParallelSizes(data=worker.num_workers, tensor=worker.num_gpus_per_worker)
    sizes = {name: max(1, _size(worker, key)) for name, key in MEGATRON_SIZES.items()}
    model = sizes["tensor"] * sizes["pipeline"] * sizes["context"]
    return ParallelSizes(data=max(1, worker.num_workers // model), **sizes)


def parallel_problems(role: str, worker: WorkerConfig) -> Iterator[Problem]:
    """Sizes that are no whole numbers, or whose product does not divide the ranks."""
    if not (worker.strategy_name or "").startswith("megatron"):
        return
    at = f"{role}.strategy_args.strategy_config"
    config, broken = worker.strategy_config, False
    for key in MEGATRON_SIZES.values():
        value = 1 if config.get(key) is None else config[key]
        if type(value) is not int or value < 1:
            broken = True
            yield Problem(f"{at}.{key}: {show(value)} must be a whole number from 1 on.", (f"{at}.{key}",))
    if broken:
        return
    model = (
        _size(worker, MEGATRON_SIZES["tensor"])
        * _size(worker, MEGATRON_SIZES["pipeline"])
        * _size(worker, MEGATRON_SIZES["context"])
    )
    if worker.num_workers % model:
        below, above = worker.num_workers // model * model, -(-worker.num_workers // model) * model
        choices = " or ".join(str(n) for n in (below, above) if n)
        yield Problem(
            f"{role}: {worker.num_workers} ranks do not divide by tensor x pipeline x context parallel = {model}. "
            f"Use {choices} devices in {role}.device_mapping, or smaller sizes in {at}.",
            (f"{role}.device_mapping", f"{role}.world_size", at),
        )


def _size(worker: WorkerConfig, key: str) -> int:
    value = worker.strategy_config.get(key, 1)
    return value if type(value) is int else 1
