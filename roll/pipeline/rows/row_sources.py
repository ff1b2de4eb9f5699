"""The conversations or the pairs of a run, from its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from roll.configs.tables.sight import VisionModel
from roll.datasets.chosen_rows import row_choice
from roll.datasets.preferences import PairColumns
from roll.pipeline.rows.row_checks import places
from roll.pipeline.rows.row_config import PairConfig, RowConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

R = TypeVar("R")


def rows_of(
    config: RowConfig,
    load: Callable[..., R],
    columns: Any,
    tokenizer: PreTrainedTokenizerBase,
    vision: VisionModel | None = None,
) -> tuple[R, R | None]:
    """The rows to learn from and, with a validation, those that are held out. `vision`: the learner, if it sees
    pictures. Raises ConfigError for what is wrong with them."""
    columns = replace(columns, sees=vision is not None)
    reads = columns, tokenizer, config.sequence_length, config.global_template
    choices = {at: row_choice(places(config), at, columns.texts, tokenizer) for at in config.data_args}
    rows, *held_out = (load(args, at, *reads, choices[at], vision) for at, args in config.data_args.items())
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
