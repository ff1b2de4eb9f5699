"""Observations of an environment at a turn: a text, or texts and pictures in their order."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roll.configs.tables.sight import PictureSizes
from roll.datasets.pictures.decode import as_png, decode
from roll.datasets.shown import PLACEHOLDER, READABLE
from roll.envs.base import Conversation
from roll.envs.config import VL_TRAJECTORY
from roll.errors import EnvError, PictureError
from roll.types.media import Picture, PictureSource

Part = str | Picture


_KEYS = ("prompt", "image")


class EnvCrash(EnvError):
    """The environment raised, or returned what it may not."""


@dataclass(frozen=True)
class Observation:
    """View of an environment: what it shows, in order, and the conversation if it keeps one itself."""

    parts: Sequence[Part]
    conversation: Conversation | None = None

    @property
    def text(self) -> str:
        """The observation for a reader of text: [picture] stands for each picture."""
        return "".join(part if isinstance(part, str) else READABLE for part in self.parts)

    @property
    def state(self) -> str:
        """A text that is the same for the same observation: digests stand for pictures."""
        return "".join(part if isinstance(part, str) else part.digest for part in self.parts)

    @property
    def pictures(self) -> list[Picture]:
        return [part for part in self.parts if isinstance(part, Picture)]


def parts_of(value: Any, what: str, sizes: PictureSizes | None, where: str) -> tuple[Part, ...]:
    """The observation that `reset` or `step` (`what`) returned, its pictures as the model takes them. Raises EnvCrash
    for anything but a text, a picture, or a mapping of both; and for a picture where `sizes` is None, since the env
    manager shows text alone. `where`: names the episode in messages.

    Example: {"prompt": "<image>Where?", "image": picture} -> the picture, "Where?".
    """
    if isinstance(value, str):
        return (checked_text(value, what),)
    if sizes is None:
        kind = type(value).__name__
        raise EnvCrash(
            f"{what} returned {kind} as observation, not text; pictures need env_manager_cls: {VL_TRAJECTORY}"
        )
    shown = value if isinstance(value, Mapping) else {"image": value}
    if others := [str(key) for key in shown if key not in _KEYS]:
        raise EnvCrash(f"{what} returned a mapping with {', '.join(others)} as observation; it may have {_KEYS}")
    text, images = checked_text(shown.get("prompt", ""), what), shown.get("image", ())
    pictures = list(images) if isinstance(images, list | tuple) else [images]
    if PLACEHOLDER not in text:
        text = PLACEHOLDER * len(pictures) + text
    first, *others = text.split(PLACEHOLDER)
    if len(others) != len(pictures):
        raise EnvCrash(f"{what} returned {len(pictures)} pictures and a prompt with {len(others)} {PLACEHOLDER}")
    parts: list[Part] = [first]
    for picture, words in zip(pictures, others, strict=True):
        parts += [_picture(picture, what, sizes, where), words]
    return tuple(part for part in parts if part != "")


def checked_text(value: Any, what: str) -> str:
    """The value, if it is a text that tokenizers take. Raises EnvCrash."""
    if not isinstance(value, str):
        raise EnvCrash(f"{what} returned {type(value).__name__} as observation, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which no tokenizer takes
        raise EnvCrash(f"{what} returned an observation that is not a text: {error}") from None
    return value


def _picture(value: Any, what: str, sizes: PictureSizes, where: str) -> Picture:
    """The picture as the model takes it. Its source is the whole file, so that it can be decoded again anywhere."""
    try:
        contents = bytes(value) if isinstance(value, bytes | bytearray) else _png(value)
        place = base64.b64encode(contents).decode("ascii")
        return decode(PictureSource("inline", place, where), sizes)
    except PictureError as error:
        raise EnvCrash(f"{what} returned a picture that cannot be shown: {error}") from None


def _png(value: Any) -> bytes:
    if isinstance(value, np.ndarray) and (value.dtype != np.uint8 or not value.size):
        raise PictureError(f"it is an array of {value.dtype} of shape {value.shape}, not uint8 [height, width, 3]")
    if not isinstance(value, np.ndarray) and not hasattr(value, "getdata"):
        raise PictureError(f"it is {type(value).__name__}, not a PIL image, an array or the bytes of a file")
    return as_png(value)
