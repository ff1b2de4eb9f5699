"""Rows that show pictures: which roles of the run cannot take them, told when the rows are read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.rollout import RolloutConfig
from roll.configs.strategies.choice import Choice
from roll.configs.strategies.features import Feature
from roll.configs.strategies.table import feature_problem, spec_of
from roll.configs.tables.sight import VisionModel

if TYPE_CHECKING:
    from roll.configs.sections.run import RunConfig


def picture_problems(config: RunConfig, learner: str, at: str | None = None) -> Iterator[str]:
    """Yield the problems of a run whose rows show pictures. `learner`: the role that learns from the rows. `at`: the
    key that brings pictures; None: its data_args name the rows."""
    at = at or f"{learner}.data_args.file_name"
    keeps = isinstance(config, RolloutConfig) and config.kv_on_update == "keep"
    for name, worker in config.model_roles.items():
        role = config.roles[name]
        if role.is_apart:
            continue  # its prompts are texts of their own
        choice = Choice(role, worker)
        if problem := feature_problem(choice, Feature.PICTURES, "rows with pictures", at):
            yield problem.text
        elif worker.model_args.ulysses_size > 1:
            yield (
                f"{name}.model_args.ulysses_size: {worker.model_args.ulysses_size}, but the rows show pictures, which "
                "ranks that share sequences do not divide. Set it to 1"
            )
        elif worker.use_prefix_sharing == "on":
            yield f"{name}.use_prefix_sharing: on, but trees hold no pictures, and the rows show some. Set it to off"
        elif isinstance(config, AlgorithmConfig) and config.exact_log_probs and name == learner:
            yield "exact_log_probs: true, but the rows show pictures, which exact passes do not take. Set it to false"
        elif role.use == "generate" and spec_of(worker.strategy_name).share is not None and keeps:
            yield (
                f"kv_on_update: keep, but the rows show pictures, and {worker.strategy_name} would also keep what the "
                "old weights saw in them. Set it to recompute"
            )


def sight_problems(
    config: RunConfig,
    learner: str,
    seen: Mapping[str, VisionModel | None],
    on_cpu: bool,
    of_text: Collection[str] = (),
) -> Iterator[str]:
    """Yield the problems of a run whose rows show pictures with its models: roles whose model sees none, makes other
    tokens of them than that of `learner`, or has causal attention where tokens of a picture attend to later ones.

    `seen`: how the models of roles see; None: they do not. A role that is not in it is not looked at. `on_cpu`: the
    machine has no GPUs. `of_text`: roles whose rows show none. Reward models may be of another family.
    """
    vision = seen.get(learner)
    yield from _causal_problems(config, vision, on_cpu, of_text)
    for name in config.model_roles:
        role = config.roles[name]
        if role.is_apart or name in of_text or name not in seen:
            continue
        if (model := seen[name]) is None:
            yield f"{name}: the rows show pictures, which its model does not see. Take one that does"
        elif role.head != "sequence" and vision is not None and not model.counts_as(vision):
            yield (
                f"{name}: the rows show pictures, of which its model makes other tokens ({model.sizes.unit}, id "
                f"{model.image_token}) than that of {learner} ({vision.sizes.unit}, id "
                f"{vision.image_token}). Take models of one family"
            )


def _causal_problems(
    config: RunConfig, vision: VisionModel | None, on_cpu: bool, of_text: Collection[str]
) -> Iterator[str]:
    if vision is None or not vision.facts.looks_both_ways:
        return
    why = f"tokens of a picture attend to each other both ways in {vision.model_type}"
    for name, worker in config.model_roles.items():
        role = config.roles[name]
        if role.is_apart or role.head == "sequence" or name in of_text:
            continue
        if worker.packs_rows:
            yield (
                f"{name}.use_sequence_packing: true, but the rows show pictures, and {why}, which packs do not do. Set "
                "it to false; use_dynamic_batching_in_train and _in_infer keep padding small"
            )
        elif on_cpu and Feature.TWO_WAY_ATTENTION_ON_CPU not in spec_of(worker.strategy_name).supports:
            yield (
                f"{name}.strategy_args.strategy_name: {worker.strategy_name}, but the rows show pictures, and {why}, "
                "which it does not do on a CPU. Use hf_infer"
            )
