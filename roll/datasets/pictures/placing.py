"""Finds the pictures of a row, and where they stand in its conversation.

- parts of messages show them: `{"type": "image", "image": ...}`, or `{"type": "image"}` for the next one of the column;
- or texts of user and tool turns name them, one `<image>` for each picture of the column;
- or nothing names them: then they come before the first user's text.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roll.configs.sections.data import DataArgs
from roll.datasets.loader import Row
from roll.datasets.media import is_something, shown_in
from roll.datasets.messages import PICTURE, SHOWING
from roll.datasets.pictures.forms import PicturePlaces, pictures_in
from roll.errors import ConfigError
from roll.types.media import PictureSource

PLACEHOLDER = "<image>"
READABLE = "[picture]"
COLUMNS = ("images", "image")
"""Columns that hold pictures where no key names one."""
_UNREAD = (
    "but runs read text and pictures only: the model would answer without it. Leave such rows out, or replace a "
    "video by some of its frames: pictures in the column images, with one <image> in the text for each"
)

logger = logging.getLogger(__name__)
Message = Mapping[str, Any]
Messages = tuple[Message, ...]


def named_columns(args: DataArgs) -> tuple[str, ...]:
    """The columns that pictures are looked for in."""
    return COLUMNS if args.image_key is None else (args.image_key,)


class RowPictures:
    """Finds the pictures of rows, and their places. `key`: the YAML path of `args`. Methods raise ConfigError."""

    def __init__(self, args: DataArgs, key: str):
        self._args, self._key = args, key
        self._names = named_columns(args)
        limits = {"min_pixels": args.image_min_pixels, "max_pixels": args.image_max_pixels}
        self._places = PicturePlaces(args.image_folder, limits)
        self._warned: set[str] = set()  # files

    def problem(self, row: Row) -> str | None:
        """Return the problem of a row with videos, sound, or pictures in another column than the one that is read."""
        unread = f"{_UNREAD}, or name the column of pictures as {self._key}.image_key"
        return shown_in(self.without(row), unread, in_messages=False)

    def without(self, row: Row) -> Row:
        """The row without its pictures, which go no further with it, and without columns that a run reads pictures of
        where image_key names no other."""
        return row.without((*self._names, *COLUMNS))

    def placed(self, row: Row, messages: Messages) -> tuple[Messages, tuple[PictureSource, ...]]:
        """The conversation with a part {"type": "image"} where each picture stands, and the pictures in this order.
        Messages that show nothing keep their texts."""
        names = [name for name in self._names if is_something(row.value(name))]
        if len(names) > 1:
            raise ConfigError(
                f"{row.where}: the columns {' and '.join(map(repr, names))} hold pictures, but only one is read. "
                f"Name it in {self._key}.image_key"
            )
        held = [source for name in names for source in self._held(row, name)]
        if any(_shows(message) for message in messages):
            return self._of_parts(row, messages, held)
        is_there = any(_has(row, name) for name in self._names)
        if self._args.image_key is not None and not is_there:
            raise ConfigError(
                f"{row.where}: column {self._args.image_key!r} ({self._key}.image_key) is missing; the row has "
                f"{', '.join(map(str, row.values)) or 'none'}. Write null where a row shows no picture"
            )
        if is_there:
            return self._of_texts(row, messages, held)
        self._warn_of_placeholders(row, messages)
        return messages, ()

    def _held(self, row: Row, name: str) -> list[PictureSource]:
        return pictures_in(row.value(name), f"{row.where}, column {name}", row.file, self._places)

    def _warn_of_placeholders(self, row: Row, messages: Messages) -> None:
        """Logs the first row of each file that has a placeholder and no column of pictures."""
        if row.file not in self._warned and _num_placeholders(messages):
            self._warned.add(row.file)
            logger.warning(
                "%s: a text has %s, and the row has no column %s, so the word stays text. If another column holds "
                "pictures, name it as %s.image_key.",
                row.where,
                PLACEHOLDER,
                " or ".join(map(repr, self._names)),
                self._key,
            )

    def _of_parts(
        self, row: Row, messages: Messages, held: Sequence[PictureSource]
    ) -> tuple[Messages, tuple[PictureSource, ...]]:
        if count := _num_placeholders(messages):
            raise ConfigError(
                f"{row.where}: the texts have {count} {PLACEHOLDER}, and parts of the messages show pictures, so that "
                "none is left for the texts. Take the word out of the texts"
            )
        pictures: list[PictureSource] = []
        waiting = iter(held)
        num_bare = 0
        placed: list[Message] = []
        for number, message in enumerate(messages, start=1):
            parts = message["content"] if _shows(message) else []
            for place, part in enumerate(parts, start=1):
                if part["type"] != PICTURE:
                    continue
                at = f"{row.where}, message {number}, part {place}"
                shown = pictures_in(part["image"], at, row.file, self._places)
                if len(shown) > 1:
                    raise ConfigError(f"{at} holds {len(shown)} pictures; write a part for each")
                num_bare += not shown
                pictures += shown or [next(waiting, PictureSource("file", "", at))]
            clean = [{"type": PICTURE} if part["type"] == PICTURE else part for part in parts]
            placed.append({**message, "content": clean} if parts else message)
        if num_bare != len(held):
            raise ConfigError(
                f"{row.where}: the messages have {num_bare} picture parts that name no picture, but the column "
                f"{' or '.join(map(repr, self._names))} holds {len(held)} pictures. Write one such part per picture"
            )
        return tuple(placed), tuple(pictures)

    def _of_texts(
        self, row: Row, messages: Messages, held: Sequence[PictureSource]
    ) -> tuple[Messages, tuple[PictureSource, ...]]:
        count = _num_placeholders(messages)
        if count not in (0, len(held)) or (count and not held):
            raise ConfigError(
                f"{row.where}: the texts have {count} {PLACEHOLDER}, but the column "
                f"{' or '.join(map(repr, self._names))} holds {len(held)} pictures. Write one {PLACEHOLDER} per picture"
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
        text = str(messages[first]["content"])
        parts = [*({"type": PICTURE} for _ in held), *_text_parts(text)]
        return (*messages[:first], {**messages[first], "content": parts}, *messages[first + 1 :]), tuple(held)


def _has(row: Row, name: str) -> bool:
    """True of a row with the column, or with null in the column whose entry it would be."""
    column = name.split(".")[0]
    return row.without([name]) is not row or (column in row.values and row.values[column] is None)


def readable(messages: Sequence[Message]) -> Messages:
    """The conversation for a reader of text: [picture] stands for each picture."""
    return tuple(
        {**message, "content": "".join(map(_read, message["content"]))} if _shows(message) else message
        for message in messages
    )


def num_pictures(messages: Sequence[Message]) -> int:
    """How many pictures the parts of these messages show."""
    return sum(part["type"] == PICTURE for message in messages if _shows(message) for part in message["content"])


def texts_of(value: Any) -> Iterator[str]:
    """All texts of a message, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from texts_of(inner)


def _num_placeholders(messages: Messages) -> int:
    """How many placeholders stand in the texts of turns that may show pictures."""
    contents = [message.get("content") for message in messages if message["role"] in SHOWING]
    parts = [part for each in contents for part in (each if isinstance(each, list) else [each])]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return sum(str(text).count(PLACEHOLDER) for text in texts)


def _read(part: Any) -> str:
    if not isinstance(part, Mapping):
        return str(part)
    return READABLE if part.get("type") == PICTURE else str(part.get("text", ""))


def _shows(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") == PICTURE for part in content
    )


def _split(message: Message) -> Message:
    """Example: "<image>Find x." -> an image and the text "Find x."."""
    text = message.get("content")
    if message["role"] not in SHOWING or not isinstance(text, str) or PLACEHOLDER not in text:
        return message
    first, *others = text.split(PLACEHOLDER)
    parts = [*_text_parts(first)]
    for piece in others:
        parts += [{"type": PICTURE}, *_text_parts(piece)]
    return {**message, "content": parts}


def _text_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}] if text else []
