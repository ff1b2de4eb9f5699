"""Pictures that are measured before a run, and decoded by whoever computes with them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from roll.datasets.pictures import decode as module
from roll.datasets.pictures.decode import all_decoded, decode, measure, with_pixels
from roll.errors import PictureError
from roll.types.media import Picture, Shown
from tests.unit.datasets.pictures.files import QWEN, at, encoded, pixels, png


@pytest.mark.parametrize(("format", "shape"), [("PNG", (90, 70)), ("JPEG", (1200, 800)), ("GIF", (30, 20))])
def test_it_has_the_size_and_the_pixels_of_the_picture_that_is_decoded_at_once(
    format: str, shape: tuple[int, int], tmp_path: Path
) -> None:
    source = at(tmp_path / "a", encoded(Image.fromarray(pixels(*shape)), format))
    found, wanted = measure(source, QWEN), decode(source, QWEN)
    assert found.pixels is None and not found.is_here
    assert (found.height, found.width, found.scale) == (wanted.height, wanted.width, wanted.scale)
    assert np.array_equal(with_pixels(found).array, wanted.array)


def test_its_name_is_that_of_its_place(tmp_path: Path) -> None:
    first, second = (measure(at(tmp_path / name, png()), QWEN) for name in ("a", "b"))
    assert first.digest != second.digest
    assert first.digest == measure(at(tmp_path / "a", png()), QWEN).digest


def test_a_file_that_has_changed_is_an_error_with_its_place(tmp_path: Path) -> None:
    source = at(tmp_path / "a.png", png(90, 70))
    picture = measure(source, QWEN)
    at(tmp_path / "a.png", png(91, 70))
    with pytest.raises(
        PictureError, match=r"rows.jsonl:17, column images\[1\]: .*it is 70 x 91 pixels, and was 70 x 90"
    ):
        with_pixels(picture)
    at(tmp_path / "a.png", png(90, 70)[:-30])
    with pytest.raises(PictureError, match=r"rows.jsonl:17, column images\[1\]: "):
        with_pixels(picture)


def test_each_picture_of_some_rows_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (measure(at(tmp_path / name, png(seed=seed)), QWEN) for seed, name in enumerate("ab"))
    here = Picture("here", 28, 28, np.zeros((28, 28, 3), np.uint8))
    plain, calls = module.with_pixels, []
    monkeypatch.setattr(module, "with_pixels", lambda picture: calls.append(picture.digest) or plain(picture))
    rows = all_decoded([(Shown(one, 1, 6), Shown(here, 9, 1)), (), (Shown(one, 2, 6), Shown(other, 9, 6))])
    assert sorted(calls) == sorted((one.digest, other.digest))
    assert [[shown.start for shown in row] for row in rows] == [[1, 9], [], [2, 9]]
    assert all(shown.picture.is_here for row in rows for shown in row)
    assert np.array_equal(rows[0][0].picture.array, rows[2][0].picture.array)
    assert not np.array_equal(rows[2][0].picture.array, rows[2][1].picture.array)


def test_a_decoded_picture_is_read_again_to_the_pixel_or_refused(tmp_path: Path) -> None:
    """As rows of buffers and checkpoints hold it: by where it is, and by its digest."""
    source = at(tmp_path / "a.jpg", encoded(Image.fromarray(pixels(301, 517)), "JPEG"))
    first = decode(source, QWEN)
    kept = replace(first, pixels=None)
    assert np.array_equal(with_pixels(kept).array, first.array)
    at(tmp_path / "a.jpg", encoded(Image.fromarray(255 - pixels(301, 517)), "JPEG"))
    with pytest.raises(PictureError, match="is not the picture any more"):
        with_pixels(kept)
