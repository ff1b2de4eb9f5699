"""Turns a picture's file into its canonical pixels: upright, RGB on white, of the size that the model takes.

What is broken is a PictureError that names the place and the reason, and never a blank picture.
"""

from __future__ import annotations

import hashlib
import io
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from roll.configs.tables.sight import PictureSizes
from roll.datasets.pictures.forms import format_of, from_base64
from roll.datasets.pictures.stored import read_stored
from roll.errors import PictureError, describe
from roll.types.media import Media, Picture, PictureSource, pictures_of
from roll.utils.secrets import mask

if TYPE_CHECKING:
    from PIL import Image, ImageFile

MOST_PIXELS = 100_000_000
"""A picture with more is refused before it is decoded: its pixels alone would take 300 MB."""
NUM_TRIES = 3  # of what is elsewhere
_OF_PLACE = "place:"  # before the digest of a picture whose pixels nobody has read
_SECONDS_BETWEEN = 0.5
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_AT_ONCE = 4  # pictures that are decoded at once, of a rank's micro batch
_GREY_RANGES = (1.0, 255.0, 65_535.0, 2.0**31 - 1)
_ORIENTATION = 0x0112
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""Transposition that undoes each orientation of EXIF, by the numbers of PIL's Image.Transpose."""
_SIDEWAYS = (2, 4, 5, 6)  # those of PIL's that swap height and width


def decode(source: PictureSource, sizes: PictureSizes) -> Picture:
    """The picture as the model takes it. Raises PictureError."""
    try:
        pixels, (height, width), scale = _decoded(source, sizes.size, sizes.resample, sizes.small)
    except Exception as error:  # of whatever PIL does with a broken file
        raise _at(source, error) from error
    return Picture(digest_of(pixels), height, width, pixels, source, scale, sizes.resample, sizes.small)


def measure(source: PictureSource, sizes: PictureSizes) -> Picture:
    """The picture without its pixels, its size as the model takes it, from its header alone; `with_pixels` decodes it.
    Its digest is that of its place. Raises PictureError."""
    from_height, from_width = header_size(source)
    try:
        height, width = sizes.size(from_height, from_width)
    except PictureError as error:
        raise _at(source, error) from error
    named = f"{source.form} {source.place} {height} {width}"
    place = hashlib.blake2b(named.encode(), digest_size=16).hexdigest()
    scale = (height / from_height, width / from_width)
    return Picture(_OF_PLACE + place, height, width, None, source, scale, sizes.resample, sizes.small)


def with_pixels(picture: Picture) -> Picture:
    """A picture that was measured, or decoded by a run before, with its pixels: what `decode` makes of it. Raises
    PictureError, for a file that is another one than it was, too."""
    source = picture.source
    assert source is not None, "a picture without pixels and without a source"
    then = round(picture.height / picture.scale[0]), round(picture.width / picture.scale[1])

    def size(height: int, width: int) -> tuple[int, int]:
        if (height, width) != then:
            raise PictureError(
                f"it is {width} x {height} pixels, and was {then[1]} x {then[0]} when the rows were read; do not "
                "change pictures during a run"
            )
        return picture.height, picture.width

    try:
        pixels, _, _ = _decoded(source, size, picture.resample, picture.small)
    except Exception as error:
        raise _at(source, error) from error
    if not picture.digest.startswith(_OF_PLACE) and digest_of(pixels) != picture.digest:
        changed = PictureError("it is not the picture any more that it was when its row was sampled; restore it")
        raise _at(source, changed)
    return replace(picture, pixels=pixels)


def all_decoded(rows: Sequence[Media]) -> tuple[Media, ...]:
    """The same pictures, of which those without pixels are decoded, each once and several at a time. Raises
    PictureError."""
    waiting = {picture.digest: picture for picture in pictures_of(rows) if picture.pixels is None}
    if not waiting:
        return tuple(rows)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        decoded = threads.map(with_pixels, waiting.values())
        found: dict[str, Picture] = {picture.digest: picture for picture in decoded}
    return tuple(
        tuple(replace(shown, picture=found.get(shown.picture.digest, shown.picture)) for shown in media)
        for media in rows
    )


def header_size(source: PictureSource) -> tuple[int, int]:
    """Height and width of the picture when it stands upright, from its header alone. Raises PictureError."""
    try:
        with _stream(source) as stream:
            image = _opened(stream)
            return _upright(image, _turn(image))
    except Exception as error:
        raise _at(source, error) from error


def read_file(source: PictureSource) -> tuple[bytes, str]:
    """Return the bytes of a picture's file, and the ending that its format has. Raises PictureError."""
    contents = read_bytes(source)
    return contents, (format_of(contents[:16]) or "bin").lower()


def read_bytes(source: PictureSource) -> bytes:
    """The picture's file. Raises PictureError; what is elsewhere is tried three times."""
    try:
        with _stream(source) as stream:
            return stream.read()
    except Exception as error:
        raise _at(source, error) from error


def as_png(image: Any) -> bytes:
    """A file of an image of PIL, or of uint8 pixels, without loss. Raises PictureError for what is neither."""
    from PIL import Image

    stream = io.BytesIO()
    try:
        image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
        if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
            image = image.convert("RGB")
        image.save(stream, "PNG", compress_level=1)
    except Exception as error:  # of whatever PIL does with it
        raise PictureError(describe(error)) from error
    return stream.getvalue()


def small_copy(source: PictureSource, most_pixels: int) -> np.ndarray:
    """A picture to be looked at, uint8 [height, width, 3] of about so many pixels at most. Raises PictureError."""
    return decode(source, PictureSizes(1, 1, most_pixels)).array


def digest_of(pixels: np.ndarray) -> str:
    """The name of uint8 pixels [..., height, width, 3]: 32 hexadecimal digits."""
    digest = hashlib.blake2b(" ".join(map(str, pixels.shape[:-1])).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.hexdigest()


def _decoded(
    source: PictureSource, size: Callable[[int, int], tuple[int, int]], resample: int, small: int
) -> tuple[np.ndarray, tuple[int, int], tuple[float, float]]:
    """The pixels, height and width of the result, and how much larger it is than in the file. `size`: of the result, by
    the file's height and width; `resample`: PIL's number of the filter; `small`: side of the squares that it is cut
    into, and of the copy behind several of them. Pixels of the file's own size are not cut here: a copy made of them
    later is the same."""
    from PIL import Image

    with _stream(source) as stream:
        image: Image.Image = _opened(stream)
        turn = _turn(image)
        from_height, from_width = _upright(image, turn)
        height, width = size(from_height, from_width)
        if image.format == "JPEG":  # at a half, a quarter or an eighth, if both sides are still twice those wanted
            draft = (height, width) if turn in _SIDEWAYS else (width, height)
            image.draft(None, (2 * draft[0], 2 * draft[1]))  # nearer to them strokes of letters change
        image.load()
        rgb = _rgb(image if turn is None else image.transpose(Image.Transpose(turn)))
    pixels = np.array(rgb, np.uint8)
    if rgb.size != (width, height):
        pixels = np.array(rgb.resize((width, height), Image.Resampling(resample)), np.uint8)
        if small and height * width > small**2:
            cut = pixels.reshape(height // small, small, width // small, small, 3).swapaxes(1, 2)
            copy = np.array(rgb.resize((small, small), Image.Resampling(resample)), np.uint8)
            pixels = np.concatenate([cut.reshape(-1, small, small, 3), copy[None]])
    return pixels, (height, width), (height / from_height, width / from_width)


def _at(source: PictureSource, error: Exception) -> PictureError:
    """An error that names the picture's place, whatever was wrong."""
    reason = str(error) if isinstance(error, PictureError) else describe(error)
    return PictureError(f"{source.where}: {_named(source)}{mask(reason)}")


def _named(source: PictureSource) -> str:
    return f"{mask(source.place)}: " if source.form in ("file", "address") else ""


def _stream(source: PictureSource) -> IO[bytes]:
    if source.form == "file":
        return _file(source.place)
    if source.form == "address":
        return io.BytesIO(_fetched(source.place))
    if source.form == "inline":
        try:
            return io.BytesIO(from_base64(source.place))
        except ValueError as error:
            raise PictureError(f"its base64 is broken ({error})") from error
    with _one_reader:
        return io.BytesIO(read_stored(source.place))


def _file(path: str) -> IO[bytes]:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise PictureError(f"it cannot be read: {error.strerror}") from error


_one_reader = threading.Lock()  # one row group is kept, so that threads would read it in turns


def _fetched(address: str) -> bytes:
    import fsspec

    for number in range(1, NUM_TRIES + 1):
        try:
            with fsspec.open(address, "rb") as stream:
                contents: Any = stream
                return contents.read()
        except Exception as error:  # of whatever package reads that protocol
            if number == NUM_TRIES:
                cause = error.__cause__ or error
                raise PictureError(f"it cannot be read after {NUM_TRIES} tries: {describe(cause)}") from error
            time.sleep(_SECONDS_BETWEEN * number)
    raise AssertionError


def _opened(stream: IO[bytes]) -> ImageFile.ImageFile:
    """PIL's object for a picture that is small enough, its header read. PIL would start other programs for other
    formats."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(stream, formats=_FORMATS)
    except UnidentifiedImageError:
        raise PictureError(f"it is no picture in {', '.join(_FORMATS)}, the formats that are read") from None
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise PictureError(f"it has {width} x {height} pixels, more than {MOST_PIXELS:,}; make it smaller")
    return image


def _upright(image: ImageFile.ImageFile, turn: int | None) -> tuple[int, int]:
    """Height and width after the turn."""
    width, height = image.size
    return (width, height) if turn in _SIDEWAYS else (height, width)


def _turn(image: ImageFile.ImageFile) -> int | None:
    """Return the transposition that turns the picture upright, by the EXIF orientation. It is read from the header
    alone, once, so that sizes and pixels agree. PIL turns TIFF itself. What a PNG file says behind its header is not
    looked for: PIL would decode the pixels first."""
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return None
    return _TURNS.get(image.getexif().get(_ORIENTATION, 1))


def _rgb(image: Image.Image) -> Image.Image:
    """RGB, with what shows through on white."""
    from PIL import Image

    if image.mode == "F" or image.mode.startswith("I"):
        return _from_grey(image)
    has_alpha = image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info
    if image.mode == "P" or has_alpha:
        clear = image.convert("RGBA")
        white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, clear).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_grey(image: Image.Image) -> Image.Image:
    """Grey of 16 or 32 bits, or of floats, at 8 bits. The range is that of 16 bits (floats: 1, then 255), or the next
    one that holds the brightest pixel."""
    from PIL import Image

    grey = np.nan_to_num(np.asarray(image).astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0).clip(0)
    ranges = _GREY_RANGES if image.mode == "F" else _GREY_RANGES[2:]
    most = next((limit for limit in ranges if grey.max() <= limit), float(grey.max()))
    clear = grey == image.info.get("transparency", -1)  # the value that a PNG file says is clear
    return Image.fromarray(np.rint(np.where(clear, most, grey) / most * 255).astype(np.uint8)).convert("RGB")
