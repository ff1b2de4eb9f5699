"""What a model's config.json says against the megatron strategies and their parallel sizes; imports no torch."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.checks.mtp import tied_problem
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
    if list(megatron_problems(choice.at, choice.worker.strategy_config)):
        return
    settings, facts = split_settings(choice.worker.strategy_config)[0], ModelFacts.of(model)
    if facts is not None:
        yield from sizes_problems(choice.at, settings, facts)
    stages = settings.pipeline_model_parallel_size
    why_not = tied_problem(bool(model.get("tie_word_embeddings")), stages)
    if why_not is not None and choice.worker.trains_prediction_head:
        key, other = f"{choice.role.name}.mtp_training_mode", f"{choice.at}.pipeline_model_parallel_size"
        yield Problem(f"{key}: {why_not}. Set {other}: 1, or {key}: disabled.", (key, other))
