"""Videos of rows as some of their frames, each of which is a picture of its own.

A video is a folder of pictures, a list of them, or an animated GIF or WebP file. Files of other formats are refused:
their frames are written to a folder before the run.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from roll.datasets.media import KEYS, is_something
from roll.datasets.pictures.decode import frame_times
from roll.datasets.pictures.forms import PicturePlaces, pictures_in, unpacked
from roll.datasets.pictures.stored import is_array
from roll.datasets.remote import protocol_of
from roll.errors import ConfigError, PictureError
from roll.types.media import PictureSource
from roll.utils.text import show

_KEYS = ("video", "video_url", "url", "path", "file")
_SAMPLED_BY = ("fps", "max_frames")
"""Keys by which a video says how it is sampled, in place of the run's."""
_OF_PICTURES = tuple(key for key in KEYS if key not in _KEYS)
_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_ANIMATED = (".gif", ".webp")
_MOST_CHARACTERS = 200
_MOST_FPS = 1e6  # files tell times in milliseconds, so that no frame is left out
T = TypeVar("T")
_WAY_OUT = "Write its frames to a folder (ffmpeg -i a.mp4 -vf fps=2 a/%06d.png) and name the folder, or list the frames"


@dataclass(frozen=True)
class FrameChoice:
    """Choice of a video's frames: so many a second, where the video says when each is, and at most so many. No frame
    is chosen twice."""

    fps: float
    max_frames: int

    def of_times(self, starts: Sequence[float], seconds: float) -> list[int]:
        """Frames that are there every 1 / fps seconds, by when each starts. One that stays longer is one picture.

        Example: at 2 a second, of frames that start at 0, .3, .6 and .9 and end at 1.2: 0, 1 and 3.
        """
        fps = min(self.fps, _MOST_FPS)
        count = max(1, math.ceil(round(seconds * fps, 3)))
        # A frame is there at one of these times if the first of them after its start comes before the next frame.
        firsts = [max(0, math.ceil(round((start - 1e-6) * fps, 6))) for start in starts]
        ends = [*firsts[1:], count]
        shown = zip(range(len(starts)), firsts, ends, strict=True)
        return self.of_frames([frame for frame, first, end in shown if first < min(end, count)])

    def of_frames(self, frames: Sequence[T]) -> list[T]:
        """All of these, or as many as there may be at equal distances, the first and the last among them."""
        most, last = self.max_frames, len(frames) - 1
        if len(frames) <= most:
            return list(frames)
        return [frames[round(number * last / max(most - 1, 1))] for number in range(most)]


def videos_in(
    value: Any, where: str, data_file: str, places: PicturePlaces, choice: FrameChoice
) -> list[list[PictureSource]]:
    """The frames of each video of a value, in order: of one video, or of a list of them. A part of a message that names
    none holds none. `where` names the value in messages. Raises ConfigError where something in it is no video, or
    cannot be read."""
    value = unpacked(value)
    if isinstance(value, list | tuple) or is_array(value):
        named = [(one, f"{where}[{number}]") for number, one in enumerate(value)]
    else:
        is_bare = isinstance(value, Mapping) and not any(is_something(value[key]) for key in value if key != "type")
        named = [] if is_bare else [(value, where)]
    return [_frames(one, at, data_file, places, choice) for one, at in named if is_something(one)]


def _frames(value: Any, where: str, data_file: str, places: PicturePlaces, choice: FrameChoice) -> list[PictureSource]:
    if isinstance(value, Mapping):
        value, choice = _of_mapping(value, where, choice)
    if isinstance(value, list | tuple) or is_array(value):
        frames = pictures_in(value, where, data_file, places)
        if not frames:
            raise ConfigError(f"{where}: the video has no frames")
        return choice.of_frames(frames)
    if not isinstance(value, str):
        kind = type(value).__name__
        raise ConfigError(f"{where}: a video is a path, or a list of pictures, and not {kind}. {_WAY_OUT}")
    return _of_path(value, where, data_file, places, choice)


def _of_mapping(value: Mapping[str, Any], where: str, choice: FrameChoice) -> tuple[Any, FrameChoice]:
    """Return the video that a mapping names, and the choice of its frames."""
    held = [key for key in _KEYS if is_something(value.get(key))]
    if not held and (key := next((key for key in _OF_PICTURES if is_something(value.get(key))), None)) is not None:
        raise ConfigError(
            f"{where}: {key} holds a file's contents or a picture, and a video is no picture and is not read from "
            "contents. The frames of one video stand in a list of their own, inside the list; a video itself is "
            "written to a file, whose path stands here"
        )
    if len(held) != 1:
        named = " and ".join(held) or "none"
        raise ConfigError(f"{where}: name one video, under the key {' or '.join(_KEYS[:3])}; {named} is there")
    others = [key for key, inner in value.items() if key not in (*_KEYS, *_SAMPLED_BY, "type") and is_something(inner)]
    if others:
        raise ConfigError(
            f"{where}: {others[0]}: {show(value[others[0]])} is not read of a video; only "
            f"{' and '.join(_SAMPLED_BY)} are. Leave it out"
        )
    own = {key: value[key] for key in _SAMPLED_BY if value.get(key) is not None}
    for key, number in own.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
            raise ConfigError(f"{where}: {key}: {show(number)} is no number above 0")
    choice = FrameChoice(float(own.get("fps", choice.fps)), max(1, int(own.get("max_frames", choice.max_frames))))
    inner = value[held[0]]
    return (inner["url"], choice) if isinstance(inner, Mapping) and set(inner) == {"url"} else (inner, choice)


def _of_path(text: str, where: str, data_file: str, places: PicturePlaces, choice: FrameChoice) -> list[PictureSource]:
    if text.startswith("data:") or "\0" in text or len(text) > 4096 or (protocol_of(text) not in (None, "file")):
        raise ConfigError(f"{where}: {show(text, 40)} is no video on this machine. {_WAY_OUT}")
    (source,) = pictures_in(text, where, data_file, places)
    place = show(source.place, _MOST_CHARACTERS)
    if source.form != "file":
        raise ConfigError(f"{where}: {place} is no video on this machine. {_WAY_OUT}")
    if os.path.isdir(source.place):
        names = sorted(filter(_is_picture, os.listdir(source.place)), key=_by_numbers)
        if not names:
            raise ConfigError(f"{where}: the folder {place} holds no pictures ({', '.join(_PICTURES)})")
        return [
            PictureSource("file", os.path.join(source.place, name), f"{where}, {name}")
            for name in choice.of_frames(names)
        ]
    ending = os.path.splitext(source.place)[1].lower()
    if not os.path.isfile(source.place) and ending in ("", *_PICTURES):  # of other files the format is told first
        raise ConfigError(f"{where}: there is no file or folder {place}")
    if ending not in _ANIMATED:
        if ending in _PICTURES:
            why = "is a picture, and no video; the frames of one video stand in a list of their own, inside the list"
        else:
            why = f"is no folder, GIF or WebP, and files of other formats are not read. {_WAY_OUT}"
        raise ConfigError(f"{where}: {place} {why}")
    try:
        starts, seconds = frame_times(source)
    except PictureError as error:
        raise ConfigError(str(error)) from error
    return [replace(source, frame=frame, where=f"{where}, frame {frame}") for frame in choice.of_times(starts, seconds)]


def _is_picture(name: str) -> bool:
    return name.lower().endswith(_PICTURES) and not name.startswith(".")


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """Sorts 2.png before 10.png."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
