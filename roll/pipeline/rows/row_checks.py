"""Checks of the settings and the files of runs on rows that exist before them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

from roll.configs.checks.pictures import picture_problems, sight_problems
from roll.configs.problems import Problem
from roll.datasets.chosen_rows import Places
from roll.pipeline.rows.row_config import PairConfig, RowConfig
from roll.run.saving.model_files import known_sight, read_vision
from roll.run.start.data_files import data_args_problems, has_files, missing_rows
from roll.run.start.first_rows import learners_tokenizer, refusals_of_rows
from roll.run.start.load import unread_keys
from roll.run.start.machine import lacks_gpus
from roll.utils.imports import resolve


def places(config: RowConfig) -> Places:
    return Places(config.data_args, f"{config.learner}.data_args")


def file_problems(config: RowConfig) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    yield from data_args_problems(config.data_args)


def missing_files(config: RowConfig) -> Iterator[Problem]:
    """Data files and templates that are not on this machine."""
    yield from missing_rows(config.data_args, config.global_template, _sees(config))


def row_problems(config: RowConfig) -> Iterator[str]:
    """Yield problems found in the first rows of the files."""
    yield from _row_problems(config, reach=True)


def local_rows(config: RowConfig) -> Iterator[str]:
    """The same of files of this machine alone."""
    yield from _row_problems(config, reach=False) if has_files(config.data_args) else ()


def _row_problems(config: RowConfig, reach: bool) -> Iterator[str]:
    from roll.datasets.conversations import load_conversations, look_at_rows  # torch: only where rows are read
    from roll.datasets.preferences import load_pairs

    waiting = _shown_problems(config)  # told once, with the first rows that show some
    tokenizer, columns = learners_tokenizer(config), _columns(config)
    for at, args in config.data_args.items():
        problems = list(look_at_rows(args, at, columns, reach, lambda: waiting))
        yield from problems
        if not problems and tokenizer is not None and not columns.sees:
            load = load_pairs if isinstance(config, PairConfig) else load_conversations
            limits = columns, tokenizer, config.sequence_length, config.global_template
            yield from refusals_of_rows(load, args, at, *limits)


def _shown_problems(config: RowConfig) -> Iterator[str]:
    yield from picture_problems(config, config.learner)
    yield from sight_problems(config, config.learner, known_sight(config.model_roles), lacks_gpus(config))


def _columns(config: RowConfig) -> Any:
    return replace(cast(Callable[[RowConfig], Any], resolve(config.columns))(config), sees=_sees(config))


def _sees(config: RowConfig) -> bool:
    return read_vision(config.value(config.learner).model_args) is not None


def pair_warnings(config: PairConfig) -> Iterator[str]:
    """Keys of rows that pairs have no use for."""
    yield from unread_keys(config.data_args, "prompt_key, chosen_key and rejected_key", "messages")
