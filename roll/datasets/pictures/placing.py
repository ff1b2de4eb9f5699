"""Finds the pictures of a row, and where they stand in its conversation.

- parts of messages show them: `{"type": "image", "image": ...}`, or `{"type": "image"}` for the next one of the column;
- or texts of user and tool turns name them, one `<image>` for each picture of the column;
- or nothing names them: then they come before the first user's text.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from roll.configs.sections.data import DataArgs
from roll.datasets.loader import Row
from roll.datasets.media import is_something, shown_in
from roll.datasets.messages import PICTURE, SHOWING
from roll.datasets.pictures.forms import PicturePlaces, pictures_in
from roll.datasets.shown import COLUMNS, PLACEHOLDER, Message, Messages, named_columns, shows
from roll.errors import ConfigError
from roll.types.media import PictureSource

_UNREAD = "but runs read text and pictures only: the model would answer without it. Leave such rows out"
_IN_TEXT = re.compile(f"({re.escape(PLACEHOLDER)})")


class RowPictures:
    """Finds the pictures of rows, and their places. `key`: the YAML path of `args`. Methods raise ConfigError."""

    def __init__(self, args: DataArgs, key: str):
        limits = {"min_pixels": args.image_min_pixels, "max_pixels": args.image_max_pixels}
        self._key, self._named, self._columns = key, args.image_key, named_columns(args)
        self._places = PicturePlaces(args.image_folder, limits)

    def problem(self, row: Row) -> str | None:
        """Return the problem of a row that shows videos or sound, or pictures in a column that is not read. Beside a
        column that is named, or pictures that are shown, other columns are not looked at."""
        unread = f"{_UNREAD}, or name the column of pictures as {self._key}.image_key"
        is_decided = (
            self._named is not None
            or any(is_something(row.value(name)) for name in self._columns)
            or shown_in(row, in_columns=False) is not None
        )
        return shown_in(self.without(row), unread, in_messages=False, in_columns=not is_decided)

    def without(self, row: Row) -> Row:
        """The row without its pictures, which go no further with it."""
        return row.without((*self._columns, *COLUMNS))

    def placed(self, row: Row, messages: Messages) -> tuple[Messages, tuple[PictureSource, ...]]:
        """The conversation with a part {"type": "image"} where each picture stands, and these in this order. Messages
        that show nothing keep their texts."""
        held = self._held(row)
        if any(shows(message) for message in messages):
            return self._of_parts(row, messages, held)
        there = [name for name in self._columns if _has(row, name)]
        if self._named is not None and not there:
            raise ConfigError(
                f"{row.where}: column {self._named!r} ({self._key}.image_key) is missing; the row has "
                f"{', '.join(map(str, row.values)) or 'none'}. Write null where a row shows no picture"
            )
        return self._of_texts(row, messages, held) if there else (messages, ())

    def _held(self, row: Row) -> list[PictureSource]:
        names = [name for name in self._columns if is_something(row.value(name))]
        if len(names) > 1:
            raise ConfigError(
                f"{row.where}: the columns {' and '.join(map(repr, names))} hold pictures, but only one is read. Name "
                f"it in {self._key}.image_key"
            )
        return [each for name in names for each in self._read(row, row.value(name), f"{row.where}, column {name}")]

    def _read(self, row: Row, value: Any, where: str) -> list[PictureSource]:
        return pictures_in(value, where, row.file, self._places)

    @property
    def _column(self) -> str:
        return " or ".join(map(repr, self._columns))

    def _of_parts(
        self, row: Row, messages: Messages, held: Sequence[PictureSource]
    ) -> tuple[Messages, tuple[PictureSource, ...]]:
        if count := sum(text.count(PLACEHOLDER) for text in _texts(messages)):
            raise ConfigError(
                f"{row.where}: the texts have {count} {PLACEHOLDER}, but parts of the messages show pictures, and then "
                "words in texts name none. Write a part of the type image in the word's place, or take the word out"
            )
        pictures: list[PictureSource] = []
        waiting, num_bare = iter(held), 0
        placed: list[Message] = []
        for number, message in enumerate(messages, start=1):
            if not shows(message):
                placed.append(message)
                continue
            clean: list[Any] = []
            for place, part in enumerate(message["content"], start=1):
                if part["type"] != PICTURE:
                    clean.append(part)
                    continue
                at = f"{row.where}, message {number}, part {place}"
                shown = self._read(row, part[PICTURE], at)
                if len(shown) > 1:
                    raise ConfigError(f"{at} holds {len(shown)} pictures; write a part for each")
                num_bare += not shown
                pictures += shown or [source for source in [next(waiting, None)] if source is not None]
                clean.append({"type": PICTURE})
            placed.append({**message, "content": clean})
        if num_bare != len(held):
            raise ConfigError(
                f"{row.where}: the messages have {num_bare} picture parts that name no picture, but the column "
                f"{self._column} holds {len(held)} pictures. Write one such part per picture of the column, or leave "
                "the column out"
            )
        return tuple(placed), tuple(pictures)

    def _of_texts(
        self, row: Row, messages: Messages, held: Sequence[PictureSource]
    ) -> tuple[Messages, tuple[PictureSource, ...]]:
        count = sum(text.count(PLACEHOLDER) for text in _texts(messages))
        if count not in (0, len(held)) or (count and not held):
            raise ConfigError(
                f"{row.where}: the texts have {count} {PLACEHOLDER}, but the column {self._column} holds {len(held)} "
                f"pictures. Write one {PLACEHOLDER} per picture"
            )
        if not held:
            return messages, ()
        for number, message in enumerate(messages, start=1):
            if message["role"] not in SHOWING and PLACEHOLDER in str(message.get("content")):
                raise ConfigError(
                    f"{row.where}: message {number} ({message['role']}) has {PLACEHOLDER} in its text, but only user "
                    "and tool turns show pictures"
                )
        if count:
            return tuple(map(_split, messages)), tuple(held)
        first = next((place for place, message in enumerate(messages) if message["role"] == "user"), None)
        if first is None:
            raise ConfigError(f"{row.where}: the row has {len(held)} pictures and no user message to show them in")
        text = [{"type": "text", "text": messages[first]["content"]}] if messages[first]["content"] else []
        leading = {**messages[first], "content": [*({"type": PICTURE} for _ in held), *text]}
        return (*messages[:first], leading, *messages[first + 1 :]), tuple(held)


def _has(row: Row, name: str) -> bool:
    """True of a row with the column, or with null in the column whose entry it would be."""
    column = name.split(".")[0]
    return row.without([name]) is not row or (column in row.values and row.values[column] is None)


def _texts(messages: Messages) -> Iterator[str]:
    """The texts of turns that may show pictures."""
    for message in messages:
        if message["role"] in SHOWING:
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            yield from (str(part.get("text")) for part in parts)


def _split(message: Message) -> Message:
    """The message with parts in place of the placeholders. Example: "<image>Find x." -> an image and "Find x."."""
    text = message.get("content")
    if message["role"] not in SHOWING or PLACEHOLDER not in str(text):
        return message
    parts = [
        {"type": PICTURE} if piece == PLACEHOLDER else {"type": "text", "text": piece}
        for piece in _IN_TEXT.split(str(text))
        if piece
    ]
    return {**message, "content": parts}
