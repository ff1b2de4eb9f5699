"""Small copies of the pictures that a recorded prompt showed, inside a page."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from functools import lru_cache

from roll.configs.tables.vision import PictureSizes
from roll.datasets.pictures.decode import decode
from roll.errors import PictureError
from roll.run.records.replay import RecordedPicture
from roll.types.media import PictureSource

MOST_PIXELS = 192 * 192
_HERE = ("file", "parquet")  # what is elsewhere is not fetched for a page


@dataclass(frozen=True)
class Thumbnail:
    """`image` is a data address; None: `caption` says what it was, and why it is not shown."""

    caption: str
    image: str | None


def thumbnail(picture: RecordedPicture) -> Thumbnail:
    if picture.form not in _HERE:
        return Thumbnail(f"{picture.where}: not kept with the rollout", None)
    return _small(picture.form, picture.place, picture.where)


@lru_cache(maxsize=512)
def _small(form: str, place: str, where: str) -> Thumbnail:
    source = PictureSource("file" if form == "file" else "parquet", place, where)
    try:
        small = decode(source, PictureSizes(1, 1, MOST_PIXELS))
    except PictureError as error:
        return Thumbnail(str(error), None)
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(small.array).save(stream, "WEBP", quality=80)
    return Thumbnail(place, "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode("ascii"))
