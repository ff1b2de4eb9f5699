"""Conversations as operators see them."""

from __future__ import annotations

from functools import partial

from roll.configs.sections.data import DataArgs
from roll.datasets.conversations import Columns
from roll.datasets.loader import Row
from roll.datasets.rows import shown
from roll.run.operators.row import ReadTexts, Texts


def conversation_texts(columns: Columns) -> ReadTexts:
    """The last answer of a conversation, and all before it."""
    return partial(_texts, columns)


def _texts(columns: Columns, row: Row, args: DataArgs, key: str) -> Texts:
    talk = columns.read(row, args, key)
    places = tuple(source.place for source in talk.pictures)
    return Texts(shown(talk.messages[:-1]), (shown(talk.messages[-1:]),), places)
