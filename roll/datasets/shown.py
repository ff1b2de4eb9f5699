"""Pictures in rows, as far as every run has to know of them: the columns that hold some, and the parts of messages that
show them. `pictures/placing.py` finds what they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from roll.configs.sections.data import DataArgs
from roll.datasets.messages import PICTURE
from roll.utils.text import show

if TYPE_CHECKING:
    from roll.types.media import PictureSource

Message = Mapping[str, Any]
Messages = tuple[Message, ...]
PLACEHOLDER = "<image>"
READABLE = "[picture]"
COLUMNS = ("images", "image")
"""Columns that hold pictures where no key names one."""
_MOST_CHARACTERS = 300  # of a path in a message: base64 that nobody knows for what it is looks like one


def named_columns(args: DataArgs) -> tuple[str, ...]:
    """The columns that pictures are looked for in."""
    return COLUMNS if args.image_key is None else (args.image_key,)


def readable(messages: Sequence[Message]) -> Messages:
    """The conversation for a reader of text: [picture] stands for each picture."""
    return tuple(
        {**message, "content": "".join(map(_read, message["content"]))} if shows(message) else message
        for message in messages
    )


def num_pictures(messages: Sequence[Message]) -> int:
    """How many pictures the parts of these messages show."""
    return sum(part["type"] == PICTURE for message in messages if shows(message) for part in message["content"])


def texts_of(value: Any) -> Iterator[str]:
    """All texts of a message, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from texts_of(inner)


def _read(part: Any) -> str:
    if not isinstance(part, Mapping):
        return str(part)
    return READABLE if part.get("type") == PICTURE else str(part.get("text", ""))


def shows(message: Message) -> bool:
    """True if parts of a message show pictures."""
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") == PICTURE for part in content
    )


def missing_files(sources: Sequence[PictureSource]) -> Iterator[str]:
    """Yield a message for each picture whose file is not on this machine."""
    for source in sources:
        if source.form == "file" and not os.path.isfile(source.place):
            yield f"{source.where}: there is no file {show(source.place, _MOST_CHARACTERS)}"
