"""A run whose steps would wait for groups for ever is refused before it starts."""

from collections.abc import Iterator

from roll.configs.plan.rollout_bounds import rollout_bounds
from roll.configs.problems import Problem
from roll.configs.sections.algorithm import AlgorithmConfig


def rehearsal_problems(config: AlgorithmConfig) -> Iterator[Problem]:
    """Plays the first steps with the numbers of this run."""
    from roll.distributed.scheduler.rehearsal import rehearse

    num_groups = config.num_groups
    try:
        bounds = rollout_bounds(config)
    except ValueError:  # the configuration is refused for it
        return
    if why := rehearse(bounds, num_groups if config.is_use_additional_prompts else 0, config.max_steps):
        yield Problem(f"{num_groups} groups a step, {bounds.capacity} under way: {why}.", ("rollout_batch_size",))
