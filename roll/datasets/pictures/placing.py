"""Finds the pictures and videos of a row, and where they stand in its conversation.

- parts of messages show them: `{"type": "image", "image": ...}`, or `{"type": "image"}` for the next one of the column;
- or texts of user and tool turns name them, one `<image>` for each picture of the column;
- or nothing names them: then they come before the first user's text.

`video` stands for `image` with videos, each of which becomes as many pictures as it has frames that are shown.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll.configs.sections.data import DataArgs
from roll.datasets.loader import Row
from roll.datasets.media import is_something, shown_in
from roll.datasets.messages import PICTURE, SHOWING, VIDEO
from roll.datasets.pictures.forms import PicturePlaces, pictures_in
from roll.datasets.shown import (
    COLUMNS,
    PLACEHOLDER,
    VIDEO_COLUMNS,
    VIDEO_PLACEHOLDER,
    Message,
    Messages,
    named_columns,
    shows,
    video_columns,
)
from roll.errors import ConfigError
from roll.types.media import PictureSource

_UNREAD = "but runs read text, pictures and videos only: the model would answer without it. Leave such rows out"

logger = logging.getLogger(__name__)


Entries = list[list[PictureSource]]
"""The pictures that each entry of a column becomes: one, or the frames of a video."""


@dataclass(frozen=True)
class _Medium:
    """Pictures or videos: the type of their parts, the word for them, the word in texts, and where rows hold them."""

    type: str
    what: str
    placeholder: str
    columns: tuple[str, ...]
    key: str  # that names another column
    named: str | None  # by it
    read: Callable[[Any, str, str], Entries]  # of a value, its place and the data file

    @property
    def columns_said(self) -> str:
        return " or ".join(map(repr, self.columns))


class RowPictures:
    """Finds the pictures of rows, and their places. `key`: the YAML path of `args`. Methods raise ConfigError."""

    def __init__(self, args: DataArgs, key: str):
        self._key = key
        limits = {"min_pixels": args.image_min_pixels, "max_pixels": args.image_max_pixels}
        places = PicturePlaces(args.image_folder, limits)
        of_videos = PicturePlaces(args.video_folder, limits)
        choice = args.video_fps, args.video_max_frames
        self._media = (
            _Medium(
                PICTURE, "picture", PLACEHOLDER, named_columns(args), "image_key", args.image_key,
                lambda value, where, file: [[source] for source in pictures_in(value, where, file, places)],
            ),
            _Medium(
                VIDEO, "video", VIDEO_PLACEHOLDER, video_columns(args), "video_key", args.video_key,
                lambda value, where, file: _frames_of(value, where, file, of_videos, choice),
            ),
        )  # fmt: skip
        self._warned: set[tuple[str, str]] = set()  # files, and what their texts show

    def problem(self, row: Row) -> str | None:
        """Return the problem of a row that shows sound in a message, or pictures, videos or sound in columns of which
        none is read. A column that is named, or that shows something, decides: others are not looked at."""
        unread = (
            f"{_UNREAD}, or name the column of pictures as {self._key}.image_key and that of videos as "
            f"{self._key}.video_key"
        )
        is_decided = shown_in(row, in_columns=False) is not None or any(
            medium.named is not None or any(is_something(row.value(name)) for name in medium.columns)
            for medium in self._media
        )
        return shown_in(self.without(row), unread, in_messages=False, in_columns=not is_decided)

    def without(self, row: Row) -> Row:
        """The row without its pictures, which go no further with it, and without columns that a run reads pictures of
        where no key names others."""
        named = [name for medium in self._media for name in medium.columns]
        return row.without((*named, *COLUMNS, *VIDEO_COLUMNS))

    def placed(self, row: Row, messages: Messages) -> tuple[Messages, tuple[PictureSource, ...]]:
        """The conversation with a part {"type": "image"} where each picture or frame stands, and these in this order.
        Messages that show nothing keep their texts."""
        held = {medium.type: self._held(row, medium) for medium in self._media}
        if any(shows(message) for message in messages):
            return self._of_parts(row, messages, held)
        for medium in self._media:
            self._check_column(row, medium)
        there = [medium for medium in self._media if any(_has(row, name) for name in medium.columns)]
        self._warn_of_placeholders(row, messages, [medium for medium in self._media if medium not in there])
        return self._of_texts(row, messages, there, held) if there else (messages, ())

    def _held(self, row: Row, medium: _Medium) -> Entries:
        names = [name for name in medium.columns if is_something(row.value(name))]
        if len(names) > 1:
            raise ConfigError(
                f"{row.where}: the columns {' and '.join(map(repr, names))} hold {medium.what}s, but only one is read. "
                f"Name it in {self._key}.{medium.key}"
            )
        return [
            each for name in names for each in medium.read(row.value(name), f"{row.where}, column {name}", row.file)
        ]

    def _check_column(self, row: Row, medium: _Medium) -> None:
        if medium.named is not None and not _has(row, medium.named):
            raise ConfigError(
                f"{row.where}: column {medium.named!r} ({self._key}.{medium.key}) is missing; the row has "
                f"{', '.join(map(str, row.values)) or 'none'}. Write null where a row shows no {medium.what}"
            )

    def _warn_of_placeholders(self, row: Row, messages: Messages, media: Sequence[_Medium]) -> None:
        """Logs the first row of each file that has a placeholder and no column of what it stands for."""
        for medium in media:
            if (row.file, medium.type) not in self._warned and _num_placeholders(messages, medium.placeholder):
                self._warned.add((row.file, medium.type))
                logger.warning(
                    "%s: a text has %s, and the row has no column %s, so the word stays text. If another column holds "
                    "%ss, name it as %s.%s.",
                    row.where,
                    medium.placeholder,
                    medium.columns_said,
                    medium.what,
                    self._key,
                    medium.key,
                )

    def _of_parts(
        self, row: Row, messages: Messages, held: Mapping[str, Entries]
    ) -> tuple[Messages, tuple[PictureSource, ...]]:
        media = {medium.type: medium for medium in self._media}
        for medium in self._media:
            if count := _num_placeholders(messages, medium.placeholder):
                raise ConfigError(
                    f"{row.where}: the texts have {count} {medium.placeholder}, but parts of the messages show "
                    f"pictures or videos, and then words in texts name none. Write a part of the type {medium.type} in "
                    "the word's place, or take the word out"
                )
        pictures: list[PictureSource] = []
        waiting = {kind: iter(shown) for kind, shown in held.items()}
        num_bare = dict.fromkeys(held, 0)
        placed: list[Message] = []
        for number, message in enumerate(messages, start=1):
            clean: list[Any] = []
            for place, part in enumerate(message["content"] if shows(message) else [], start=1):
                if (medium := media.get(part["type"])) is None:
                    clean.append(part)
                    continue
                at = f"{row.where}, message {number}, part {place}"
                shown = medium.read(part[medium.type], at, row.file)
                if len(shown) > 1:
                    raise ConfigError(f"{at} holds {len(shown)} {medium.what}s; write a part for each")
                num_bare[medium.type] += not shown
                (frames,) = shown or [next(waiting[medium.type], [PictureSource("file", "", at)])]
                pictures += frames
                clean += [{"type": PICTURE} for _ in frames]
            placed.append({**message, "content": clean} if clean else message)
        for medium in self._media:
            if num_bare[medium.type] != len(held[medium.type]):
                raise ConfigError(
                    f"{row.where}: the messages have {num_bare[medium.type]} {medium.what} parts that name no "
                    f"{medium.what}, but the column {medium.columns_said} holds {len(held[medium.type])} "
                    f"{medium.what}s. Write one such part per {medium.what} of the column, or leave the column out"
                )
        return tuple(placed), tuple(pictures)

    def _of_texts(
        self, row: Row, messages: Messages, media: Sequence[_Medium], held: Mapping[str, Entries]
    ) -> tuple[Messages, tuple[PictureSource, ...]]:
        leading: list[PictureSource] = []  # of what no text names
        waiting: dict[str, Iterator[list[PictureSource]]] = {}  # by the placeholder
        for medium in media:
            shown, count = held[medium.type], _num_placeholders(messages, medium.placeholder)
            if count not in (0, len(shown)) or (count and not shown):
                raise ConfigError(
                    f"{row.where}: the texts have {count} {medium.placeholder}, but the column {medium.columns_said} "
                    f"holds {len(shown)} {medium.what}s. Write one {medium.placeholder} per {medium.what}"
                )
            if not shown:
                continue
            _check_roles(row, messages, medium)
            if count:
                waiting[medium.placeholder] = iter(shown)
            else:
                leading += [source for frames in shown for source in frames]
        if not waiting and not leading:
            return messages, ()
        pictures: list[PictureSource] = []
        first = next((place for place, message in enumerate(messages) if message["role"] == "user"), None)
        if leading and first is None:
            raise ConfigError(f"{row.where}: the row has {len(leading)} pictures and no user message to show them in")
        placed: list[Message] = []
        for place, message in enumerate(messages):
            before = leading if place == first else []
            pictures += before
            placed.append(_split(message, before, waiting, pictures))
        return tuple(placed), tuple(pictures)


def _frames_of(value: Any, where: str, file: str, places: PicturePlaces, choice: tuple[float, int]) -> Entries:
    from roll.datasets.pictures.videos import FrameChoice, videos_in  # brings the decoder

    return videos_in(value, where, file, places, FrameChoice(*choice)) if is_something(value) else []


def _check_roles(row: Row, messages: Messages, medium: _Medium) -> None:
    for number, message in enumerate(messages, start=1):
        if message["role"] not in SHOWING and medium.placeholder in str(message.get("content")):
            raise ConfigError(
                f"{row.where}: message {number} ({message['role']}) has {medium.placeholder} in its text, but only "
                f"user and tool turns show {medium.what}s"
            )


def _has(row: Row, name: str) -> bool:
    """True of a row with the column, or with null in the column whose entry it would be."""
    column = name.split(".")[0]
    return row.without([name]) is not row or (column in row.values and row.values[column] is None)


def _num_placeholders(messages: Messages, placeholder: str) -> int:
    """How many of these placeholders stand in the texts of turns that may show pictures."""
    contents = [message.get("content") for message in messages if message["role"] in SHOWING]
    parts = [part for each in contents for part in (each if isinstance(each, list) else [each])]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return sum(str(text).count(placeholder) for text in texts)


def _split(
    message: Message,
    before: Sequence[PictureSource],
    waiting: Mapping[str, Iterator[list[PictureSource]]],
    pictures: list[PictureSource],
) -> Message:
    """The message with parts in place of the placeholders that are `waiting`, whose pictures it adds to `pictures`, and
    behind those `before` its text. Example: "<image>Find x." -> an image and the text "Find x."."""
    text = message.get("content")
    shows = message["role"] in SHOWING and isinstance(text, str) and any(word in text for word in waiting)
    if not shows and not before:
        return message
    parts: list[dict[str, str]] = [{"type": PICTURE} for _ in before]
    pattern = f"({'|'.join(map(re.escape, waiting))})" if waiting else "(?!)"
    for piece in re.split(pattern, str(text)) if shows else [str(text)]:
        if piece in waiting:
            frames = next(waiting[piece])
            pictures += frames
            parts += [{"type": PICTURE} for _ in frames]
        elif piece:
            parts.append({"type": "text", "text": piece})
    return {**message, "content": parts}
