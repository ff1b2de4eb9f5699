"""Pictures that rows show beside their tokens: where each comes from, what it is, and where it stands in a row. A task
names its pictures; they are decoded when its group begins, and the prompt becomes the one that the model sees, with one
id per picture token. All lengths, masks and log-probs from there on speak of that form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

PictureForm = Literal["file", "address", "inline", "parquet"]


@dataclass(frozen=True)
class PictureSource:
    """A picture that is not decoded yet. `place` is a path (file), an address that fsspec reads (address), base64
    (inline), or FILE#ROW/COLUMN/INDEX of a parquet file (parquet). `where`: for messages, as "rows.jsonl:17, column
    images[1]"."""

    form: PictureForm
    place: str
    where: str


@dataclass(frozen=True)
class Picture:
    """A picture as models take it: upright, RGB on white, its sides multiples of what the model cuts it into.

    - `digest`: the name of its pixels, or of its place, where its header alone was read
    - `pixels`: uint8 [height, width, 3], or an opaque handle on such an array elsewhere; None: not decoded yet. Where
      `small` says so, uint8 [squares + 1, small, small, 3]: its squares, row after row, and the small copy
    - `small`: side of the small copy of the whole picture behind several squares, made of the file's pixels; 0: none
    - `resample`: PIL's number of the filter that made it of its file's pixels
    - `scale`: how much larger it is than in its file, (vertically, horizontally), for tasks that speak of pixels
    """

    digest: str
    height: int
    width: int
    pixels: object = field(compare=False, repr=False)
    source: PictureSource | None = None
    scale: tuple[float, float] = (1.0, 1.0)
    resample: int = 3
    small: int = 0

    @property
    def is_here(self) -> bool:
        """True where `pixels` are an array of this process."""
        return isinstance(self.pixels, np.ndarray)

    @property
    def array(self) -> np.ndarray:
        """The pixels. TypeError where they are elsewhere."""
        if not isinstance(self.pixels, np.ndarray):
            raise TypeError("the pixels of this picture are in the object store; fetch them first")
        return self.pixels


@dataclass(frozen=True)
class Shown:
    """A picture in a row: its placeholders are tokens `start` to `start + length`."""

    picture: Picture
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length

    def moved(self, by: int) -> Shown:
        """Return the picture where `by` tokens come before the row."""
        return Shown(self.picture, self.start + by, self.length)


Media = tuple[Shown, ...]
"""The pictures of one row, by their places; spans do not overlap."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model sees it: int32 [P], one id per picture token, and the pictures."""

    ids: np.ndarray
    media: Media = ()


def check_spans(media: Media, num_tokens: int, what: str) -> None:
    """ValueError for spans that are empty, overlap, are not in order, or end beyond the row."""
    end = 0
    for shown in media:
        if shown.length < 1 or shown.start < end or shown.end > num_tokens:
            raise ValueError(f"{what}: a picture at tokens {shown.start} to {shown.end} of {num_tokens}")
        end = shown.end


def pictures_of(rows: Sequence[Media] | None) -> Iterator[Picture]:
    for media in rows or ():
        for shown in media:
            yield shown.picture


# Pictures in files: what they are and where they come from, without their pixels.


def media_fields(media: Media) -> list[dict[str, Any]]:
    """The pictures of a row as JSON values. ValueError for one that came from no file, address or row."""
    fields = []
    for shown in media:
        picture = shown.picture
        if picture.source is None:
            raise ValueError("a picture that an environment drew has no place from which it could be read again")
        fields.append(
            {
                "digest": picture.digest,
                "size": [picture.height, picture.width],
                "scale": list(picture.scale),
                "resample": picture.resample,
                "small": picture.small,
                "source": asdict(picture.source),
                "span": [shown.start, shown.length],
            }
        )
    return fields


def media_of(fields: Sequence[Mapping[str, Any]]) -> Media:
    """The inverse. Pixels are read again, by who shows them."""
    return tuple(
        Shown(
            Picture(
                entry["digest"],
                *entry["size"],
                pixels=None,
                source=PictureSource(**entry["source"]),
                scale=tuple(entry["scale"]),
                resample=entry["resample"],
                small=entry["small"],
            ),
            *entry["span"],
        )
        for entry in fields
    )
