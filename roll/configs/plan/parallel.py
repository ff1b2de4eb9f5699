"""How the workers of a role divide its work: data, tensor, pipeline and context parallel sizes."""

from dataclasses import dataclass

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.table import spec_of


@dataclass(frozen=True)
class ParallelSizes:
    """Sizes with data x tensor x pipeline x context x sequence = ranks; `sequence` is that of the trainers that keep
    every layer whole (ulysses_size). The expert sizes divide the ranks of a pipeline stage
    once more, for the experts' weights alone: they do not divide the batch. `whole_head`: ranks that share matrices
    have the head whole all the same.

    Example: 8 ranks of megatron_train with tensor 2 and pipeline 2 have data 2; with expert 2 as well, still 2.
    """

    data: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    sequence: int = 1
    expert: int = 1
    expert_tensor: int = 1
    whole_head: bool = False


def parallel_sizes(worker: WorkerConfig) -> ParallelSizes:
    """Sizes of a role, as its strategy says. Engines that generate count a whole engine as one data-parallel rank."""
    spec = spec_of(worker.strategy_name)
    if spec.sizes:
        return spec.ask(spec.sizes, ParallelSizes, worker)
    return ParallelSizes(data=worker.num_workers, tensor=worker.num_gpus_per_worker)
