"""The pairs of a run, from its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roll.datasets.preferences import PairColumns, load_pairs
from roll.pipeline.pair_config import PairConfig
from roll.types.batch import PairRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def columns(config: PairConfig) -> PairColumns:
    return PairColumns(
        config.prompt_key,
        config.query_key,
        config.chosen_key,
        config.rejected_key,
        config.system_key,
        config.margin_column,
    )


def pairs_of(config: PairConfig, tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> tuple[PairRows, ...]:
    """Those to learn from and, with a validation, those that are held out. Raises ConfigError for what is wrong with
    them."""
    return tuple(
        load_pairs(args, at, columns(config), tokenizer, max_tokens, config.global_template)
        for at, args in config.data_args.items()
    )
