"""What a model's config.json says against the megatron strategies and their parallel sizes; imports no torch."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.configs.strategies.megatron_checks import ModelFacts, megatron_problems, sizes_problems
from roll.configs.strategies.megatron_config import split_settings
from roll.configs.strategies.spec import Choice
from roll.models.megatron.family_table import family_problem


def model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    why_not = family_problem(model)
    if why_not is not None:
        yield Problem(f"{choice.name_key}: {why_not}", (choice.name_key,))
        return
    facts = ModelFacts.of(model)
    if facts is not None and not list(megatron_problems(choice.at, choice.worker.strategy_config)):
        yield from sizes_problems(choice.at, split_settings(choice.worker.strategy_config)[0], facts)
