"""What is wrong with the settings and the files of runs whose rows are there before them."""

from collections.abc import Iterator, Sequence

from roll.configs.problems import Problem
from roll.pipeline.data_files import data_args_problems, data_args_warnings, missing_rows
from roll.pipeline.operators.checks import missing_packages, operator_problems, own_function_problems
from roll.pipeline.row_config import RowConfig


def file_problems(config: RowConfig) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    yield from data_args_problems(config.data_args)
    yield from operator_problems(config.data_args, f"{config.learner}.data_args")


def missing_files(config: RowConfig) -> Iterator[Problem]:
    """Data files and templates that are not on this machine."""
    yield from missing_rows(config.data_args, config.global_template)
    yield from missing_packages(config.data_args)


def operator_code_problems(config: RowConfig) -> Iterator[str]:
    """Operators of the user's own that cannot be imported."""
    yield from own_function_problems(config.data_args)


def unread_keys(config: RowConfig, keys: Sequence[str], instead: str) -> Iterator[str]:
    """Keys of data_args that are given without effect. `instead`: the keys that name the columns."""
    for at, args in config.data_args.items():
        for key in keys:
            if args.is_changed(key):
                yield f"{at}.{key} does nothing here: {instead} name the columns."
    yield from data_args_warnings(config.data_args)
