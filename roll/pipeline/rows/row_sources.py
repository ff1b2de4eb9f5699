"""The pairs of a run, from its settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from roll.configs.sections.data import DataArgs
from roll.datasets.loader import Row
from roll.datasets.preferences import PairColumns, load_pairs
from roll.datasets.rows import shown
from roll.pipeline.rows.row_config import PairConfig, RowConfig
from roll.run.operators.choice import Places, row_choice
from roll.run.operators.row import ReadTexts, Texts
from roll.types.batch import PairRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The rows of runs whose rows are there before them, as operators see them.


def places(config: RowConfig) -> Places:
    """How a row is read depends on the keys that name columns."""
    columns = {key: config.value(key) for key in type(config).model_fields if key.endswith("_key")}
    learner = config.learner
    return Places(config.data_args, f"{learner}.data_args", f"{learner} {columns}", config.value(learner).model_args)


def columns(config: PairConfig) -> PairColumns:
    return PairColumns(
        config.prompt_key,
        config.query_key,
        config.chosen_key,
        config.rejected_key,
        config.system_key,
        config.margin_column,
        config.tools_key,
    )


def pairs_of(config: PairConfig, tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> tuple[PairRows, ...]:
    """Those to learn from and, with a validation, those that are held out. Raises ConfigError for what is wrong with
    them."""
    reads = columns(config), tokenizer, max_tokens, config.global_template
    choices = {at: row_choice(places(config), at, read_texts(columns(config)), tokenizer) for at in config.data_args}
    return tuple(load_pairs(args, at, *reads, choices[at]) for at, args in config.data_args.items())


def read_texts(columns: PairColumns) -> ReadTexts:
    """How operators see a row."""
    return partial(pair_texts, columns)


def pair_texts(columns: PairColumns, row: Row, args: DataArgs, key: str) -> Texts:
    """Both answers, and what they answer."""
    pair = columns.read(row, args, key)
    answers = shown(pair.chosen[pair.num_context_messages :]), shown(pair.rejected[pair.num_context_messages :])
    return Texts(shown(pair.chosen[: pair.num_context_messages]), answers)
