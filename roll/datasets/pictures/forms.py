"""What a column, or a part of a message, holds of pictures: each becomes a PictureSource, and nothing is opened.

A picture is a path, an address that fsspec reads, a data URL, base64, bytes, or a mapping with one of these.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roll.datasets.pictures.stored import StoredPicture
from roll.datasets.remote import local_path, protocol_of
from roll.errors import ConfigError
from roll.types.media import PictureSource
from roll.utils.text import show

KEYS = ("bytes", "base64", "image", "image_url", "input_image", "url", "path", "file", "src", "data")
"""Keys under which a mapping holds a picture; the first that holds something wins."""
BEGINNINGS = {
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "JPEG": rb"\xff\xd8\xff",
    "GIF": rb"GIF8[79]a",
    "WEBP": rb"RIFF....WEBP",
    "BMP": rb"BM.{4}\0\0\0\0",
    "TIFF": rb"II[*+]\0|MM\0[*+]",
}
"""How files of each format begin, as patterns. No other format is opened."""
_DATA_URL = re.compile(r"data:[\w.+/-]*(;[\w.+=-]+)*,", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/_\s-]{40,}={0,2}\s*")
_NO_PATH = 4096  # characters; no path is as long


@dataclass(frozen=True)
class PicturePlaces:
    """The folder in which relative paths begin: the one that `image_folder` names, else the data file's. Both may be
    addresses."""

    folder: str | None = None

    def of(self, path: str, data_file: str) -> str:
        """A path or an address, whole."""
        if self.folder is None:
            start = data_file.rpartition("/")[0] if protocol_of(data_file) else str(Path(data_file).parent)
        else:
            start = local_path(self.folder)
        if protocol_of(start):
            return f"{start.rstrip('/')}/{path}"
        return str(Path(start).expanduser() / Path(path).expanduser())


def format_of(beginning: bytes) -> str | None:
    """The format of a picture's file by its first 16 bytes, None of another file. Example: b"GIF89a..." -> "GIF"."""
    return next((name for name, mark in BEGINNINGS.items() if re.match(mark, beginning, re.DOTALL)), None)


def pictures_in(value: Any, where: str, data_file: str, places: PicturePlaces) -> list[PictureSource]:
    """The pictures of a value, in their order. Lists hold several, at any depth; nulls and empty texts hold none.

    `where` names the value in messages, and `data_file` is the file that it stands in. Raises ConfigError where
    something in it is no picture.
    """
    several = isinstance(value, list | tuple) or _is_array(value)
    found: list[PictureSource] = []
    for number, one in enumerate(_flat(value)):
        at = f"{where}[{number}]" if several else where
        source = _source(one, at, data_file, places)
        found += [] if source is None else [source]
    return found


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple) or _is_array(value):
        for inner in value:
            yield from _flat(inner)
    else:
        yield value


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray" and value.dtype == object


def _source(value: Any, where: str, data_file: str, places: PicturePlaces) -> PictureSource | None:
    if value is None or (isinstance(value, str | bytes) and not value):
        return None
    if isinstance(value, StoredPicture):
        return PictureSource("parquet", value.place, where)
    if isinstance(value, bytes | bytearray | memoryview):
        return PictureSource("inline", base64.b64encode(value).decode("ascii"), where)
    if isinstance(value, str):
        return _of_text(value, where, data_file, places)
    if isinstance(value, Mapping):
        held = [value[key] for key in KEYS if key in value and value[key] not in (None, "", b"")]
        if held:
            return _source(held[0], where, data_file, places)
        if any(inner not in (None, "", b"", []) for key, inner in value.items() if key != "type"):
            raise ConfigError(f"{where}: {show(value)} names no picture; the key {' or '.join(KEYS[:4])} would")
        return None
    raise ConfigError(
        f"{where}: a picture is a path, an address, base64 or bytes, and not {type(value).__name__} ({show(value)})"
    )


def _of_text(text: str, where: str, data_file: str, places: PicturePlaces) -> PictureSource:
    if (head := _DATA_URL.match(text)) is not None:
        if not head[0].lower().endswith(";base64,"):
            raise ConfigError(f"{where}: the data URL {show(text, 40)} is not in base64; write it so")
        return PictureSource("inline", text[head.end() :], where)
    if _is_base64(text):
        return PictureSource("inline", text, where)
    if "\0" in text or len(text) > _NO_PATH:
        raise ConfigError(f"{where}: {show(text, 40)} is no path, address or base64 of a picture")
    if protocol_of(text) is not None:
        return PictureSource("address", text, where)
    place = places.of(local_path(text), data_file)
    return PictureSource("address" if protocol_of(place) else "file", place, where)


def _is_base64(text: str) -> bool:
    """True of base64 that begins as a picture's file does, and of any that is too long for a path."""
    if _BASE64.fullmatch(text) is None:
        return False
    try:
        beginning = base64.b64decode(text[:24].translate(_STANDARD))
    except (binascii.Error, ValueError):
        return len(text) > _NO_PATH
    return format_of(beginning) is not None or len(text) > _NO_PATH


_STANDARD = str.maketrans("-_", "+/")


def from_base64(text: str) -> bytes:
    """The bytes of base64, of either alphabet and without regard to white space. ValueError where it is none."""
    packed = "".join(text.split()).translate(_STANDARD)
    return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
