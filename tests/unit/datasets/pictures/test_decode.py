"""Canonical pixels: every kind of picture that files hold becomes RGB on white, upright, or a PictureError."""

import base64
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from roll.datasets.pictures import decode as decoding
from roll.datasets.pictures.decode import decode, digest_of, header_size, read_bytes
from roll.errors import PictureError
from roll.types.media import PictureSource
from tests.helpers.memory import growth
from tests.unit.datasets.pictures.files import QWEN, SAME, at, bomb, encoded, pixels, png

SEEDS = range(10)
WHERE = "rows.jsonl:17, column images[1]"


def oriented(format: str, orientation: int, seed: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95}}.get(format, {})
    return encoded(Image.fromarray(pixels(40, 60, seed)), format, exif=exif, **options)


LOSSLESS: dict[str, Callable[[Image.Image], bytes]] = {
    "png": lambda image: encoded(image),
    "webp": lambda image: encoded(image, "WEBP", lossless=True),
    "bmp": lambda image: encoded(image, "BMP"),
    "tiff": lambda image: encoded(image, "TIFF"),
    "tiff-lzw": lambda image: encoded(image, "TIFF", compression="tiff_lzw"),
}


@pytest.mark.parametrize("format", LOSSLESS)
def test_lossless_formats_give_the_pixels_that_were_written(format: str, tmp_path: Path) -> None:
    for seed in SEEDS:
        array = pixels(31 + seed, 57, seed)
        picture = decode(at(tmp_path / "a", LOSSLESS[format](Image.fromarray(array))), SAME)
        assert np.array_equal(picture.array, array) and (picture.height, picture.width) == array.shape[:2]
        assert picture.digest == digest_of(array) and len(picture.digest) == 32 and picture.scale == (1.0, 1.0)


@pytest.mark.parametrize(("mode", "tolerance"), [("CMYK", 6), ("YCbCr", 6), ("RGB", 6)])
def test_jpeg_of_every_colour_space_is_near_its_pixels(mode: str, tolerance: int, tmp_path: Path) -> None:
    """JPEG loses some; an inverted or unconverted picture would be off by far more."""
    for seed in SEEDS:
        array = pixels(48, 64, seed)
        image = Image.fromarray(array).convert(mode)
        contents = encoded(image, "JPEG", quality=98, subsampling=0)
        found = decode(at(tmp_path / "a.jpg", contents), SAME).array
        assert np.abs(found.astype(int) - array).max() <= tolerance


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_shows_through_is_on_white(mode: str, tmp_path: Path) -> None:
    """A clear pixel has a colour too, which nobody sees."""
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        array = random.integers(0, 256, (9, 7, len(mode)), np.uint8)
        array[0, :, -1], array[1, :, -1] = 0, 255
        image = Image.fromarray(array, mode)
        found = decode(at(tmp_path / "a.png", encoded(image)), SAME).array.astype(float)
        alpha = array[..., -1:] / 255
        expected = array[..., :-1] * alpha + 255 * (1 - alpha)
        assert np.abs(found - expected).max() <= 1  # one rounding
        assert (found[0] == 255).all() and np.array_equal(found[1], np.broadcast_to(array[1, :, :-1], (7, 3)))


def test_deep_grey_is_scaled_and_not_cut(tmp_path: Path) -> None:
    """PIL's own conversion makes everything above 255 white."""
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        sixteen = random.integers(0, 2**16, (8, 8)).astype(np.uint16)
        sixteen[0, 0] = 40_000
        found = decode(at(tmp_path / "a.png", encoded(Image.fromarray(sixteen))), SAME).array
        assert np.abs(found[..., 0] - sixteen / 257).max() <= 0.5 and found[0, 0, 0] == 156
        deep = random.integers(0, 2**31 - 1, (8, 8)).astype(np.int32)
        found = decode(at(tmp_path / "a.tif", encoded(Image.fromarray(deep), "TIFF")), SAME).array
        assert np.abs(found[..., 0] - deep / (2**31 - 1) * 255).max() <= 0.5
        for most in (1.0, 255.0):
            floats = (random.random((8, 8)) * most).astype(np.float32)
            floats[0, 1] = most
            found = decode(at(tmp_path / "a.tif", encoded(Image.fromarray(floats), "TIFF")), SAME).array
            assert np.abs(found[..., 1] - floats / most * 255).max() <= 0.51
        floats[0, 0] = np.nan
        assert decode(at(tmp_path / "a.tif", encoded(Image.fromarray(floats), "TIFF")), SAME).array[0, 0, 0] == 0


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_upright_and_their_headers_say_so(format: str, orientation: int, tmp_path: Path) -> None:
    turned: dict[int, Any] = {
        1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2), 6: lambda a: np.rot90(a, -1), 7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
        8: lambda a: np.rot90(a),
    }  # fmt: skip
    for seed in (0, 1):
        source = at(tmp_path / "a", oriented(format, orientation, seed))
        expected = turned[orientation](pixels(40, 60, seed)).astype(int)
        picture = decode(source, SAME)
        assert header_size(source) == expected.shape[:2] == (picture.height, picture.width)
        assert np.abs(picture.array - expected).max() <= (6 if format == "JPEG" else 0)


def test_a_picture_is_resized_by_pils_bicubic_and_only_where_its_size_differs(tmp_path: Path) -> None:
    for seed in SEEDS:
        array = np.random.default_rng(seed).integers(0, 256, (90, 70, 3), np.uint8)
        picture = decode(at(tmp_path / "a.png", encoded(Image.fromarray(array))), QWEN)
        expected = Image.fromarray(array).resize((56, 84), Image.Resampling.BICUBIC)
        assert np.array_equal(picture.array, np.asarray(expected)) and picture.scale == (84 / 90, 56 / 70)
        again = decode(at(tmp_path / "b.png", encoded(expected)), QWEN)
        assert (again.digest, again.scale) == (picture.digest, (1.0, 1.0))


def test_a_large_jpeg_is_decoded_at_a_part_of_its_size_and_looks_the_same(tmp_path: Path) -> None:
    array = pixels(1200, 800)
    source = at(tmp_path / "a.jpg", encoded(Image.fromarray(array), "JPEG", quality=98))
    picture = decode(source, QWEN)
    expected = Image.fromarray(array).resize((picture.width, picture.height), Image.Resampling.BICUBIC)
    assert np.abs(picture.array.astype(int) - np.asarray(expected)).max() <= 8
    assert picture.scale == (picture.height / 1200, picture.width / 800)


@pytest.mark.parametrize("shape", [(1, 201), (5000, 20), (2, 3000)])
def test_a_picture_that_is_far_too_long_is_refused(shape: tuple[int, int], tmp_path: Path) -> None:
    source = at(tmp_path / "a.png", encoded(Image.new("RGB", (shape[1], shape[0]))))
    with pytest.raises(PictureError, match=rf"{WHERE[:10]}.* one side is over 200 times the other"):
        decode(source, QWEN)


def test_a_bomb_is_refused_from_its_header_and_memory_does_not_grow(tmp_path: Path) -> None:
    source = at(tmp_path / "bomb.png", bomb())
    decode(at(tmp_path / "small.png", png()), QWEN)

    def refuse() -> None:
        for read in (lambda: decode(source, QWEN), lambda: header_size(source)):
            with pytest.raises(PictureError, match="exceeds limit"):
                read()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert growth(refuse) < 20e6  # the pixels would take 400 MB


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
def test_a_truncated_file_is_an_error_wherever_it_ends(format: str, tmp_path: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    contents = encoded(image, format)
    for part in range(1, 11):
        cut = contents[: max(1, len(contents) * part // 12)]
        with pytest.raises(PictureError, match=r"rows.jsonl:17, column images\[1\]: .*/a: "):
            decode(at(tmp_path / "a", cut), SAME)


NO_PICTURES = [b"\0" * 99, b"<svg></svg>", b"%!PS-Adobe-3.0 EPSF-3.0", b"hello", b"P6 1 1 255 a", b"\0\0\0\x1cftypavif"]


@pytest.mark.parametrize("contents", NO_PICTURES)
def test_what_is_no_picture_is_named(contents: bytes, tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="it is no picture in PNG"):
        decode(at(tmp_path / "a.png", contents), SAME)


def test_inline_pictures_are_read_and_broken_base64_is_named() -> None:
    packed = base64.b64encode(png(20, 30)).decode()
    for form in (
        packed,
        packed.rstrip("="),
        packed.replace("+", "-").replace("/", "_"),
        packed[:40] + "\n" + packed[40:],
    ):
        source = PictureSource("inline", form, WHERE)
        assert header_size(source) == (20, 30) and np.array_equal(decode(source, SAME).array, pixels(20, 30))
    with pytest.raises(PictureError, match="its base64 is broken"):
        decode(PictureSource("inline", "!!!", WHERE), SAME)


def test_an_address_is_tried_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    contents, tries = png(20, 30), []
    fsspec.filesystem("memory").pipe("/a.png", contents)
    source = PictureSource("address", "memory://a.png", WHERE)
    really = fsspec.open

    def shaky(address: str, mode: str) -> Any:
        tries.append(address)
        if len(tries) < 3:
            raise OSError("connection reset")
        return really(address, mode)

    monkeypatch.setattr(decoding, "_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(fsspec, "open", shaky)
    assert read_bytes(source) == contents and len(tries) == 3
    tries.clear()
    with pytest.raises(PictureError, match=rf"{WHERE[:13]}.*memory://none.png: it cannot be read after 3 tries"):
        read_bytes(PictureSource("address", "memory://none.png", WHERE))
    assert len(tries) == 3
