"""Forms of pictures in a column, or in a part of a message: each becomes a PictureSource, and nothing is opened.

A picture is a path, an address that fsspec reads, a data URL, base64, bytes, or a mapping with one of these.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from roll.datasets.media import KEYS, SIZE_KEYS, is_something
from roll.datasets.pictures.stored import StoredPicture, flat, is_array
from roll.datasets.remote import local_path, protocol_of
from roll.errors import ConfigError
from roll.types.media import PictureSource
from roll.utils.files import expanded
from roll.utils.text import show

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
    addresses.

    - `limits`: the sizes that a picture may say of itself, which are those of the run: by min_pixels and max_pixels
    """

    folder: str | None = None
    limits: Mapping[str, int | None] = field(default_factory=dict)

    def of(self, path: str, data_file: str) -> str:
        """A path or an address, whole."""
        if self.folder is None:
            start = data_file.rpartition("/")[0] if protocol_of(data_file) else str(Path(data_file).parent)
        else:
            start = local_path(self.folder)
        if protocol_of(start):
            return f"{start.rstrip('/')}/{path}"
        return str((expanded(start) / expanded(path)).absolute())


def format_of(beginning: bytes) -> str | None:
    """The format of a picture's file by its first 16 bytes, None of another file. Example: b"GIF89a..." -> "GIF"."""
    return next((name for name, mark in BEGINNINGS.items() if re.match(mark, beginning, re.DOTALL)), None)


def pictures_in(value: Any, where: str, data_file: str, places: PicturePlaces) -> list[PictureSource]:
    """The pictures of a value, in their order. Lists hold several, at any depth; nulls and empty texts hold none.

    `where` names the value in messages, and `data_file` is the file that it stands in. Raises ConfigError where
    something in it is no picture.
    """
    value = unpacked(value)
    several = isinstance(value, list | tuple) or is_array(value)
    found: list[PictureSource] = []
    for number, one in enumerate(flat(value)):
        at = f"{where}[{number}]" if several else where
        source = _source(one, at, data_file, places)
        found += [] if source is None else [source]
    return found


def unpacked(value: Any) -> Any:
    """A list or a mapping that stands as JSON in a text, as columns of CSV files have to; any other value as it is."""
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _source(value: Any, where: str, data_file: str, places: PicturePlaces) -> PictureSource | None:
    if not is_something(value):
        return None
    if isinstance(value, StoredPicture):
        return PictureSource("parquet", value.place, where)
    if isinstance(value, bytes | bytearray | memoryview):
        return PictureSource("inline", base64.b64encode(value).decode("ascii"), where)
    if isinstance(value, str):
        return _of_text(value, where, data_file, places)
    if isinstance(value, Mapping):
        return _of_mapping(value, where, data_file, places)
    raise ConfigError(
        f"{where}: a picture is a path, an address, base64 or bytes, and not {type(value).__name__} ({show(value)})"
    )


def _of_mapping(value: Mapping[str, Any], where: str, data_file: str, places: PicturePlaces) -> PictureSource | None:
    held = {key: value[key] for key in KEYS if key in value and is_something(value[key])}
    if not held:
        if any(is_something(inner) for key, inner in value.items() if key != "type"):
            raise ConfigError(f"{where}: {show(value)} names no picture. Give it under the key {' or '.join(KEYS[:4])}")
        return None
    for key in SIZE_KEYS:
        if value.get(key) is not None and value[key] != places.limits.get(key):
            raise ConfigError(
                f"{where}: {key}: {show(value[key])}, but a picture has no limits of its own here. Leave it out, and "
                "set data_args.image_min_pixels and data_args.image_max_pixels for all"
            )
    return _source(next(iter(held.values())), where, data_file, places)


def _of_text(text: str, where: str, data_file: str, places: PicturePlaces) -> PictureSource:
    packed = text.strip()
    if (head := _DATA_URL.match(packed)) is not None:
        if not head[0].lower().endswith(";base64,"):
            raise ConfigError(f"{where}: the data URL {show(packed, 40)} is not in base64; write it so")
        return PictureSource("inline", packed[head.end() :], where)
    if _is_base64(packed):
        return PictureSource("inline", packed, where)
    if "\0" in text or len(text) > _NO_PATH:
        raise ConfigError(f"{where}: {show(text, 40)} is no path, address or base64 of a picture")
    if protocol_of(text) is not None:
        return PictureSource("address", text, where)
    path = local_path(text)
    place = places.of(path if path == text else unquote(path), data_file)
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
