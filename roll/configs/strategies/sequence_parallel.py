"""`ulysses_size` of the strategies whose ranks may share sequences: the sizes that follow from it."""

from collections.abc import Iterator

from roll.configs.plan.layout import ParallelSizes
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.choice import Choice


def sizes(worker: WorkerConfig) -> ParallelSizes:
    together = worker.model_args.ulysses_size
    return ParallelSizes(data=max(1, worker.num_workers // together), sequence=together)


def ranks_problems(choice: Choice) -> Iterator[Problem]:
    """Ranks that do not divide into groups."""
    worker, name = choice.worker, choice.role.name
    together, ranks = worker.model_args.ulysses_size, worker.num_workers
    if ranks % together:
        key = f"{name}.model_args.ulysses_size"
        yield Problem(
            f"{key}: {together} does not divide the role's {ranks} ranks. Use a multiple of {together} devices.",
            (key, f"{name}.device_mapping", f"{name}.world_size"),
        )
