"""Pictures, videos and sound in rows. A run that does not read what a row shows refuses the row."""

import re
from collections.abc import Mapping
from typing import Any

from roll.datasets.loader import Row
from roll.errors import ConfigError

_MEDIA_NAMES = {
    "image": "a picture", "img": "a picture", "picture": "a picture", "photo": "a picture", "pixel": "a picture",
    "video": "a video", "audio": "sound", "sound": "sound", "speech": "sound", "voice": "sound", "file": "a file",
}  # fmt: skip
_PART = re.compile(r"(input_|output_)?(image|picture|video|audio|sound|speech|file)s?(_(url|path|file|bytes))?")
_COLUMN = re.compile(
    r"(decoded_|input_)?(image|img|picture|photo|video|audio|sound|speech)s?"
    r"(_?\d+|_?(url|uri|path|file|name|list|bytes|base64)s?)?",
    re.IGNORECASE,
)
_MIXED_COLUMN = re.compile(r"(multi_?modal|mm)_?(data|inputs?)", re.IGNORECASE)
_FILE = re.compile(
    r"data:(image|video|audio)/.*"
    r"|.*\.(png|jpe?g|gif|webp|bmp|tiff?|svg|heic|mp4|webm|mov|avi|mkv|mp3|wav|flac|ogg|opus|m4a)([?#].*)?",
    re.IGNORECASE | re.DOTALL,
)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{200,}={0,2}")
_HELD = ("bytes", "path", "url", "image", "image_url", "video", "audio", "array", "src", "base64")
_BEGINNINGS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"OggS", b"fLaC", b"ID3")
KEYS = ("bytes", "base64", "image", "image_url", "input_image", "url", "path", "file", "src", "data")
"""Keys under which a mapping holds a picture. Contents come before places, which may name where they came from."""
SIZE_KEYS = ("min_pixels", "max_pixels", "resized_height", "resized_width")
"""Keys by which Qwen's own tools size one picture."""
TEXT_KINDS = ("text", "input_text", "output_text")
"""Types of parts that hold a text."""
A_PICTURE = _MEDIA_NAMES["image"]
UNREAD = "but runs read text only: the model would answer without it. Leave such rows out"
BLIND = (
    "but the run's model does not see pictures: it would answer without them. Take one that does, leave such rows out"
)
_DEPTH = 4  # of lists and mappings that are looked through


def part_medium(part: Mapping[str, Any]) -> str | None:
    """Name the medium that a part of a message's content shows beside text, or in place of one. Example: {"type":
    "input_image"} -> "a picture"."""
    kind = part.get("type")
    if isinstance(kind, str) and kind not in TEXT_KINDS:
        return _named(kind) if _PART.fullmatch(kind) else None
    return next((_named(key) for key in medium_keys(part)), None)


def medium_keys(part: Mapping[str, Any]) -> list[str]:
    """The keys of a part, or of a message, that hold pictures, videos, sound or files by their names."""
    return [str(key) for key in part if _PART.fullmatch(str(key)) and is_something(part[key])]


def check_text_alone(row: Row, unread: str = UNREAD) -> None:
    """Raises ConfigError where `shown_in` finds something."""
    if (what := shown_in(row, unread)) is not None:
        raise ConfigError(what)


def shown_in(row: Row, unread: str = UNREAD, in_messages: bool = True, in_columns: bool = True) -> str | None:
    """Return the problem of a row that has pictures, videos or sound in a column, by its name and its value or by the
    value alone, or in the parts of a message. A text in a column `image` counts where it names such a file;
    `python:3.11` in it is no picture.

    `unread` says why it is wrong, and what to do. Without `in_messages`, pictures in parts of messages may
    stand there; without `in_columns`, columns may hold anything.
    """
    for column, value in row.values.items():
        name = str(column)
        is_named, is_mixed = _COLUMN.fullmatch(name) is not None, _MIXED_COLUMN.fullmatch(name) is not None
        if is_mixed and isinstance(value, Mapping):
            shows = any(_COLUMN.fullmatch(str(key)) and is_something(inner) for key, inner in value.items())
        else:
            shows = _is_medium(value, is_named)
        if shows and in_columns:
            what = (_named(name) if is_named else None) or "a picture, video or sound"
            return f"{row.where}: column {name!r} holds {what}, {unread}, or the column out of the rows"
        if (what := _in_messages(value, in_messages)) is not None:
            return f"{row.where}: column {name!r} shows {what} in a message, {unread}"
    return None


def _in_messages(value: Any, all_of_them: bool) -> str | None:
    """Name the medium that a part of a message shows, in a column with messages."""
    for message in value if isinstance(value, list) else ():
        content = message.get("content", message.get("value")) if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            what = part_medium(part) if isinstance(part, Mapping) else None
            if what is not None and (all_of_them or what != A_PICTURE):
                return what
    return None


def _named(word: str) -> str | None:
    return next((what for name, what in _MEDIA_NAMES.items() if name in word.lower()), None)


def is_something(value: Any) -> bool:
    """False of null, of empty texts, bytes and lists, and of what holds no more than these."""
    if isinstance(value, Mapping):
        return any(is_something(inner) for inner in value.values())
    if isinstance(value, list | tuple):
        return any(is_something(inner) for inner in value)
    return value is not None and not (isinstance(value, str | bytes) and not value)


def _is_medium(value: Any, is_named: bool, depth: int = _DEPTH) -> bool:
    """`is_named`: the column is called as those of pictures are, so that less is enough."""
    if value is None or isinstance(value, bool | int | float) or not depth:
        return False
    if isinstance(value, str):
        names_one = is_named and bool(_FILE.fullmatch(value) or _BASE64.fullmatch(value))
        return names_one or value.startswith("data:image/")
    if isinstance(value, bytes | bytearray):
        return is_named or bytes(value[:4]).startswith(_BEGINNINGS)
    if isinstance(value, list | tuple):
        return any(_is_medium(inner, is_named, depth - 1) for inner in value[:100])
    if isinstance(value, Mapping):
        held = {key: inner for key, inner in value.items() if is_something(inner)}
        if is_named:
            return any(key in _HELD for key in held)
        return set(value) <= {"bytes", "path"} and isinstance(held.get("bytes"), bytes)
    return False
