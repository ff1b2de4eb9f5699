"""Warnings about how fast a policy is changed: updates in a step, and learning rates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from roll.configs.memory.model_shape import model_shape
from roll.configs.plan.batch_plan import role_train_plan
from roll.configs.plan.describe import counted
from roll.configs.plan.run_plan import TrainPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.model import ModelArgs
from roll.configs.tables.roles import Head
from roll.run.saving.model_files import read_model_config
from roll.utils.text import short

MOST_UPDATES = 16  # a step
HIGHEST_RATE = 1e-5  # of full training
SMALL_MODEL = 100_000_000  # parameters; smaller models learn at higher rates
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[bB](?![A-Za-z])")


def rate_warnings(config: AlgorithmConfig) -> Iterator[str]:
    if not config.learns:
        return
    for role, worker in config.learning_roles.items():
        plan = role_train_plan(config, role, worker)
        if plan.updates_per_step > MOST_UPDATES:
            yield _updates_warning(plan)
        rate, args = worker.training_args.learning_rate, worker.model_args
        if rate <= HIGHEST_RATE or args.has_lora:
            continue
        size = num_parameters(args, config.roles[role].head or "lm")
        if size is not None and size > SMALL_MODEL:
            yield (
                f"{role}.training_args.learning_rate: {short(rate)} is high for training all of {size / 1e9:.2g} B "
                f"parameters, and may ruin the model. Most runs take 1e-6; stay at or below {short(HIGHEST_RATE)}."
            )


def _updates_warning(plan: TrainPlan) -> str:
    passes = plan.samples_per_step // (plan.micro_batch_size * plan.dp_size)
    least = math.ceil(passes * plan.epochs / MOST_UPDATES)
    fitting = next((count for count in range(least, passes) if passes % count == 0), passes)
    key = f"{plan.role}.training_args.gradient_accumulation_steps"
    counts = dict.fromkeys([fitting, passes] if plan.epochs <= MOST_UPDATES else [passes])
    ways = " or ".join(f"{count} ({counted(math.ceil(passes / count) * plan.epochs, 'update')})" for count in counts)
    epochs = " Lower ppo_epochs." if plan.epochs > MOST_UPDATES else ""
    return (
        f"{plan.role}: a step makes {plan.updates_per_step} updates, so the last ones learn from samples of a policy "
        f"that has moved far away. At most {MOST_UPDATES} are usual. Set {key} to {ways}.{epochs}"
    )


def num_parameters(args: ModelArgs, head: Head = "lm") -> float | None:
    """Parameters of a model: exact by its config.json, else about, or what its name says; None if nothing tells.

    Example: Qwen/Qwen2.5-7B, of which this machine has no files, has 7e9.
    """
    model, _ = read_model_config(args)
    if model is not None:
        shape, _ = model_shape(model, head)
        if shape is not None:
            return float(shape.num_elements)
        if (about := _about(model)) is not None:
            return about
    sizes = _SIZE.findall(args.model_name_or_path or "")
    return max(map(float, sizes)) * 1e9 if sizes else None


def _about(model: Mapping[str, Any]) -> float | None:
    """12 layers x width^2 and the embedding, as of a plain transformer."""
    layers, width, words = (model.get(key) for key in ("num_hidden_layers", "hidden_size", "vocab_size"))
    if type(layers) is int and type(width) is int and type(words) is int:
        return float(12 * layers * width**2 + words * width)
    return None
