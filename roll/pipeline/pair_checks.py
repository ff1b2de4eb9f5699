"""What is wrong with the files and the rows of runs that learn from pairs."""

from collections.abc import Iterator

from roll.configs.problems import Problem
from roll.pipeline.data_files import data_args_problems, data_args_warnings, missing_rows
from roll.pipeline.pair_config import PairConfig

_NOT_READ = ("prompt", "messages", "tag", "ground_truth", "domain_interleave_probs")


def pair_problems(config: PairConfig) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    yield from data_args_problems(config.data_args)


def pair_warnings(config: PairConfig) -> Iterator[str]:
    """Keys of rows that pairs have no use for."""
    for at, args in config.data_args.items():
        for key in _NOT_READ:
            if args.is_changed(key):
                yield f"{at}.{key} does nothing here: prompt_key, chosen_key and rejected_key name the columns."
    yield from data_args_warnings(config.data_args)


def missing_files(config: PairConfig) -> Iterator[Problem]:
    """Data files and templates that are not on this machine."""
    yield from missing_rows(config.data_args, config.global_template)


def row_problems(config: PairConfig) -> Iterator[str]:
    """What the front of the files says."""
    from roll.datasets.conversations import look_at_rows  # numpy: a dry run reads no rows
    from roll.pipeline.pair_rows import columns

    for at, args in config.data_args.items():
        yield from look_at_rows(args, at, columns(config))
