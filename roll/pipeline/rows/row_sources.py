"""The conversations and the pairs of a run, from its settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from roll.configs.tables.sight import VisionModel
from roll.datasets.chosen_rows import row_choice
from roll.datasets.conversations import Columns, load_conversations
from roll.datasets.preferences import PairColumns, load_pairs
from roll.pipeline.rows.row_checks import places
from roll.pipeline.rows.row_config import PairConfig, RowConfig
from roll.types.batch import PairRows, Rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def conversations_of(
    config: RowConfig, columns: Columns, tokenizer: PreTrainedTokenizerBase, vision: VisionModel | None
) -> tuple[Rows, Rows | None]:
    """The conversations to learn from and, with a validation, those that are held out. `vision`: the learner, if it
    sees pictures. Raises ConfigError for what is wrong with them."""
    columns = replace(columns, sees=vision is not None)
    reads = columns, tokenizer, config.sequence_length, config.global_template
    choices = {at: row_choice(places(config), at, columns.texts, tokenizer) for at in config.data_args}
    rows, *held_out = (
        load_conversations(args, at, *reads, choices[at], vision) for at, args in config.data_args.items()
    )
    return rows, held_out[0] if held_out else None


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


def pairs_of(
    config: PairConfig, tokenizer: PreTrainedTokenizerBase, max_tokens: int, vision: VisionModel | None = None
) -> tuple[PairRows, ...]:
    """Load the pairs to learn from and, with a validation, those that are held out. `vision`: the learner, if it sees
    pictures. Raises ConfigError for what is wrong with them."""
    names = replace(columns(config), sees=vision is not None)
    reads = names, tokenizer, max_tokens, config.global_template
    choices = {at: row_choice(places(config), at, names.texts, tokenizer) for at in config.data_args}
    return tuple(load_pairs(args, at, *reads, choices[at], vision) for at, args in config.data_args.items())
