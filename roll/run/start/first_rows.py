"""The first rows through tokenizer and chat template, under the run's limits, without transformers or torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from roll.configs.sections.data import DataArgs
from roll.configs.sections.run import RunConfig
from roll.datasets.answers.end_tokens import asks
from roll.datasets.file_tokenizer import file_tokenizer
from roll.datasets.loader import DataFile, DataSource, Row
from roll.datasets.sources import all_rows, data_sources
from roll.errors import ConfigError
from roll.run.saving.model_files import model_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROWS = 1000
_LOADERS = logging.getLogger("roll.datasets")


def learners_tokenizer(config: RunConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer of what is trained, or else sampled; None if this machine has no usable tokenizer.json of it."""
    worker = next(iter((config.learning_roles or config.model_roles).values()), None)
    if worker is None or worker.model_args.is_on_modelscope:
        return None
    args = worker.model_args
    file = model_file(args.tokenizer_name, "tokenizer.json")
    tokenizer = None if file is None else file_tokenizer(file.parent, args.tokenizer_name)
    if tokenizer is not None and args.tokenizer_path is not None and args.model_name_or_path is not None:
        asks(tokenizer, str(args.model_name_or_path))
    return tokenizer


def refusals_of_rows(load: Callable[..., object], args: DataArgs, key: str, *limits: object) -> Iterator[str]:
    """Yield why a run refuses the first rows of `data_args` in files of this machine. `load` reads them as the run
    does: load(args, key, *limits, choose). Nothing is said of rows that operators choose."""
    sources, problems = data_sources(args, key, reach=False)
    if problems or args.operators or not all(isinstance(source, DataFile) for source in sources):
        return
    # What is cut or left out refuses no run, unless it is every row.
    args = args if args.truncation == "error" else args.model_copy(update={"truncation": "left"})
    level = _LOADERS.level
    _LOADERS.setLevel(logging.ERROR)  # what it warns of is said when it starts
    try:
        load(args, key, *limits, first_rows)
    except ConfigError as error:
        yield from error.problems
    finally:
        _LOADERS.setLevel(level)


def first_rows(sources: Sequence[DataSource]) -> Iterator[Row]:
    return islice(all_rows(sources), ROWS)
