"""Checks of `mix`, an expert's rows: shares, keys and files; and the part of a step that draws them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeGuard

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.problems import Problem
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.run import RunConfig
from roll.configs.tables.features import FeaturePlugin
from roll.configs.tables.presets import PRESETS
from roll.datasets.templates import template_name_problem
from roll.run.start.data_files import data_args_problems, has_files, missing_rows
from roll.run.start.load import unread_keys

if TYPE_CHECKING:
    from roll.rl.parts import StepPart


def mix_problems(config: RunConfig) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    if not _has_training(config):
        return
    mix = config.mix
    if not mix.rows and config.algorithm and any(key.startswith("mix.") for key in PRESETS[config.algorithm].settings):
        yield Problem(
            f"mix.rows is missing: algorithm: {config.algorithm} learns from an expert's rows. Add under mix.rows, "
            "by a name of your own, a share and data_args.file_name.",
            ("mix.rows", "algorithm"),
        )
    shares = [f"mix.rows.{name}.share" for name in mix.drawn]
    total = sum(rows.share for rows in mix.drawn.values())
    if total >= 1:
        shares_text = " + ".join(f"{rows.share:g}" for rows in mix.drawn.values())
        text = f"mix.rows: shares of {shares_text} = {total:g} leave no room for the policy's samples. Lower them."
        yield Problem(text, tuple(shares))
    yield from data_args_problems(mix.data_args)
    for at, args in mix.data_args.items():
        if (
            config.shared_template is None
            and (wrong := template_name_problem(args.template, f"{at}.template")) is not None
        ):
            yield Problem(f"{wrong}.", (f"{at}.template",))


def mix_warnings(config: RunConfig) -> Iterator[str]:
    """Keys without effect."""
    if not isinstance(config, AlgorithmConfig):
        return
    mix = config.mix
    for name in mix.rows.keys() - mix.drawn.keys():
        why = "its share is 0" if not mix.rows[name].share else "mix.weight is 0"
        yield f"mix.rows.{name} is not read: {why}."
    yield from unread_keys(mix.data_args, "prompt_key, response_key and data_args.messages")


def missing_mix_files(config: RunConfig) -> Iterator[Problem]:
    """Data files and templates that are not on this machine."""
    if _has_training(config):
        yield from missing_rows(config.mix.data_args, config.shared_template)


def mix_row_problems(config: RunConfig, reach: bool) -> Iterator[str]:
    """Yield problems found in the first rows of the files. `reach`: of those elsewhere, too."""
    if not _has_training(config):
        return
    drawn = {f"mix.rows.{name}.data_args": rows for name, rows in config.mix.drawn.items()}
    if not reach and not has_files({at: rows.data_args for at, rows in drawn.items()}):
        return
    from roll.datasets.conversations import look_at_rows  # torch: only where there is something to read
    from roll.features.expert_rows.mix import columns_of

    for at, rows in drawn.items():
        yield from look_at_rows(rows.data_args, at, columns_of(rows), reach)


def _has_training(config: RunConfig) -> TypeGuard[AlgorithmConfig]:
    return isinstance(config, AlgorithmConfig) and config.has_training


def step_parts(config: AlgorithmConfig, plan: BatchPlan) -> Iterator[StepPart]:
    from roll.features.expert_rows.mix import Mix  # brings torch

    if config.has_training and config.mix.rows:
        yield Mix(config, plan)


PLUGIN = FeaturePlugin(
    problems=mix_problems,
    warnings=mix_warnings,
    machine_problems=missing_mix_files,
    row_problems=mix_row_problems,
    step_parts=step_parts,
)
