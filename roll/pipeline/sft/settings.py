"""From the keys of supervised fine-tuning to how its rows are read."""

from __future__ import annotations

from functools import partial

from roll.configs.data import DataArgs
from roll.datasets.conversations import Columns
from roll.datasets.loader import Row
from roll.datasets.rows import shown
from roll.pipeline.operators.row import ReadTexts, Texts
from roll.pipeline.sft.sft_config import SFTConfig


def columns(config: SFTConfig) -> Columns:
    names = (config.prompt_key, config.query_key, config.response_key, config.system_key, config.tools_key)
    return Columns(*names, config.train_on)


def read_texts(config: SFTConfig) -> ReadTexts:
    """How operators see a row."""
    return partial(conversation_texts, columns(config))


def conversation_texts(columns: Columns, row: Row, args: DataArgs, key: str) -> Texts:
    """The last answer of a conversation, and all before it."""
    messages = columns.read(row, args, key).messages
    return Texts(shown(messages[:-1]), (shown(messages[-1:]),))
