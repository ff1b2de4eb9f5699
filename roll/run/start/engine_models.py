"""Models that an engine is known to fail with, by their config.json."""

from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.problems import Problem
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.model_numbers import text_part, type_of, unsampled
from roll.configs.strategies.table import spec_of


def engine_model_problems(choice: Choice, model: Mapping[str, Any]) -> Iterator[Problem]:
    """A type that the engine is known to fail with, and a config.json without a key that the engine goes by. Whether
    the engine has an architecture at all, it says itself when it starts."""
    known, kind = spec_of(choice.worker.strategy_name).known_models, type_of(text_part(model))
    if known is None:
        return
    name = choice.worker.model_args.model_name_or_path
    keys = (choice.name_key, f"{choice.role.name}.model_args.model_name_or_path")
    if kind in known.refused:
        text = f"{choice.name_key}: {known.engine} cannot sample from {kind} models: {known.refused[kind]}."
        yield Problem(f"{text} {_other_engine(model)}", keys)
        return
    asked = known.asked_keys.get(str(model.get("model_type")))
    if asked is not None and text_part(model).get(asked[0]) is not True:
        yield Problem(
            f"{choice.name_key}: config.json of {name} has no text_config.{asked[0]}: true, as models of type "
            f"{model['model_type']} have, and {known.engine} goes by it: {asked[1]}. Write it there, or use hf_infer.",
            keys,
        )


def _other_engine(model: Mapping[str, Any]) -> str:
    """Say what samples in place of an engine that cannot."""
    why = unsampled(text_part(model))
    return f"Use sglang, if it has them, or another model: hf_infer cannot either ({why})." if why else "Use hf_infer."
