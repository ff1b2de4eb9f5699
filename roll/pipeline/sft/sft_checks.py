"""What is wrong with the settings, the files and the rows of supervised fine-tuning."""

from collections.abc import Iterator, Mapping

from roll.configs.data import DataArgs
from roll.configs.problems import Problem
from roll.pipeline.data_files import data_args_problems, data_args_warnings, missing_rows
from roll.pipeline.sft.sft_config import SFTConfig


def sft_problems(config: SFTConfig) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    yield from data_args_problems(_data_args(config))


def sft_warnings(config: SFTConfig) -> Iterator[str]:
    """Keys of rows that supervised fine-tuning has no use for."""
    for at, args in _data_args(config).items():
        for key in ("prompt", "tag", "ground_truth", "domain_interleave_probs"):
            if args.is_changed(key):
                yield f"{at}.{key} does nothing here: prompt_key, response_key and data_args.messages name the columns."
    yield from data_args_warnings(_data_args(config))


def missing_files(config: SFTConfig) -> Iterator[Problem]:
    """Data files and templates that are not on this machine."""
    yield from missing_rows(_data_args(config), config.global_template)


def row_problems(config: SFTConfig) -> Iterator[str]:
    """What the front of the files says."""
    from roll.datasets.conversations import look_at_rows  # numpy: a dry run reads no rows
    from roll.pipeline.sft.settings import columns

    for at, args in _data_args(config).items():
        yield from look_at_rows(args, at, columns(config))


def _data_args(config: SFTConfig) -> Mapping[str, DataArgs]:
    """The data_args that are read, by their YAML path."""
    places = {"sft_train.data_args": config.sft_train.data_args}
    return places if config.validation is None else places | {"validation.data_args": config.validation.data_args}
