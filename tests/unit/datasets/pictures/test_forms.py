"""What columns and parts of messages hold of pictures, in every form that data sets have."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from roll.datasets.pictures.decode import decode, read_bytes
from roll.datasets.pictures.forms import PicturePlaces, pictures_in
from roll.datasets.pictures.stored import StoredPicture, picture_columns, stored_pictures
from roll.errors import ConfigError, PictureError
from roll.types.media import PictureSource
from tests.unit.datasets.pictures.files import SAME, encoded, pixels, png

PNG = png(20, 30)
PACKED = base64.b64encode(PNG).decode()
DATA = "/data/rows.jsonl"


def sources(value: Any, folder: str | None = None, data_file: str = DATA) -> list[PictureSource]:
    return pictures_in(value, "rows.jsonl:3, column images", data_file, PicturePlaces(folder))


@pytest.mark.parametrize(
    ("value", "form", "place"),
    [
        ("a.png", "file", "/data/a.png"),
        ("b/c d.JPG", "file", "/data/b/c d.JPG"),
        ("/abs/a.png", "file", "/abs/a.png"),
        ("file:///abs/a.png", "file", "/abs/a.png"),
        ("s3://bucket/a.png", "address", "s3://bucket/a.png"),
        ("https://host/a.png?x=1", "address", "https://host/a.png?x=1"),
        (f"data:image/png;base64,{PACKED}", "inline", PACKED),
        (PACKED, "inline", PACKED),
        (base64.b64encode(b"\xff\xd8\xff" + b"\0" * 60).decode(), "inline", None),  # begins with a slash
        (PNG, "inline", PACKED),
        ({"bytes": PNG, "path": "a.png"}, "inline", PACKED),
        ({"bytes": None, "path": "a.png"}, "file", "/data/a.png"),
        ({"type": "image", "image": "a.png"}, "file", "/data/a.png"),
        ({"type": "image", "url": "https://host/a.png"}, "address", "https://host/a.png"),
        ({"type": "image", "path": "a.png", "text": None}, "file", "/data/a.png"),
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PACKED}"}}, "inline", PACKED),
        ({"type": "image_url", "image_url": "a.png"}, "file", "/data/a.png"),
        ({"type": "input_image", "image_url": "a.png"}, "file", "/data/a.png"),
        ("file:///abs/a%20b.png", "file", "/abs/a b.png"),
        ("a%20b.png", "file", "/data/a%20b.png"),
        (f"\n {PACKED}", "inline", PACKED),
        (f" data:image/png;base64,{PACKED}\n", "inline", PACKED),
        ({"bytes": b"", "path": "a.png"}, "file", "/data/a.png"),
        ({"bytes": StoredPicture("/data/a.parquet#3/images/1"), "path": "a.png"}, "parquet", None),
        ({"url": "a.png", "path": "a.png"}, "file", "/data/a.png"),
        (StoredPicture("/data/a.parquet#3/images/1"), "parquet", "/data/a.parquet#3/images/1"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_picture_of_every_form_is_found_alone_and_in_lists(value: Any, form: str, place: str | None) -> None:
    (one,) = sources(value)
    assert (one.form, one.where) == (form, "rows.jsonl:3, column images") and place in (None, one.place)
    several = sources([None, value, [value]])
    assert [source.where[-3:] for source in several] == ["[1]", "[2]"]
    assert {source.place for source in several} == {one.place}
    assert sources(np.array([value, None], dtype=object)) == [PictureSource(one.form, one.place, one.where + "[0]")]


@pytest.mark.parametrize("value", [None, "", [], [None], {"bytes": b"", "path": ""}, {"type": "image"}, {}, b""])
def test_nothing_is_no_picture(value: Any) -> None:
    assert sources(value) == []


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (17, "and not int (17)"),
        ({"caption": "a cat"}, "names no picture"),
        ("data:image/svg+xml,<svg/>", "is not in base64"),
        ("x. " * 2000, "is no path, address or base64"),
        ({"image": "a.png", "max_pixels": 784}, "max_pixels: 784, but a picture has no limits of its own here"),
        ({"image": "a.png", "resized_height": 28}, "set data_args.image_min_pixels and"),
    ],
)
def test_what_is_no_picture_is_refused_with_its_place(value: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=r"rows.jsonl:3, column images\[1\]: ") as caught:
        sources(["a.png", value])
    assert complaint in str(caught.value)


def test_paths_json_texts_and_limits_are_those_that_a_row_names() -> None:
    assert sources("a.png", "/pictures")[0].place == "/pictures/a.png"
    assert sources("a.png", "file:///pictures/")[0].place == "/pictures/a.png"
    assert sources("a.png", "s3://bucket/pictures/")[0] == PictureSource(
        "address", "s3://bucket/pictures/a.png", "rows.jsonl:3, column images"
    )
    assert sources("a.png", None, "s3://bucket/rows.jsonl")[0].place == "s3://bucket/a.png"
    assert sources("/a.png", "/pictures")[0].place == "/a.png"
    assert [each.place for each in sources('["a.png", {"path": "b.png"}]')] == ["/data/a.png", "/data/b.png"]
    assert sources('["a.png"]')[0].where.endswith("[0]") and sources("[]") == []
    assert sources("[1].png")[0].place == "/data/[1].png"
    places = PicturePlaces(None, {"min_pixels": None, "max_pixels": 784})
    value = {"image": "a.png", "max_pixels": 784, "min_pixels": None}
    assert pictures_in(value, "w", DATA, places)[0].place == "/data/a.png"
    with pytest.raises(ConfigError, match="w: max_pixels: 785"):
        pictures_in({**value, "max_pixels": 785}, "w", DATA, places)
    from PIL import Image

    (source,) = sources(base64.b64encode(encoded(Image.new("P", (40, 40)), "GIF")).decode())
    assert source.form == "inline"


STRUCT = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (pyarrow.binary(), [png(20, 30, 0), None, png(20, 30, 2)]),
        (pyarrow.list_(pyarrow.large_binary()), [[png(20, 30, 0), png(20, 30, 3)], [], [png(20, 30, 2)], None]),
        (STRUCT, [{"bytes": png(20, 30, 0), "path": None}, None, {"bytes": png(20, 30, 2), "path": "a.png"}]),
        (pyarrow.list_(STRUCT), [[{"bytes": png(20, 30, s), "path": None} for s in (0, 3)], [], None]),
        (pyarrow.list_(pyarrow.struct([("bytes", pyarrow.binary())])), [[{"bytes": png(20, 30, 0)}], []]),
    ],
    ids=["binary", "binaries", "struct", "structs", "bytes-alone"],
)
def test_pictures_of_parquet_files_are_read_by_their_rows(kind: Any, rows: list[Any], tmp_path: Path) -> None:
    rows = rows * 3
    path = str(tmp_path / "a#1.parquet")
    table = pyarrow.table({"images": pyarrow.array(rows, kind), "n": list(range(len(rows)))})
    pyarrow.parquet.write_table(table, path, row_group_size=4)
    file = pyarrow.parquet.ParquetFile(path)
    assert picture_columns(file.schema_arrow, ["images", "image", "n"]) == ["images"]
    for row, held in zip(rows, stored_pictures(file, path, "images"), strict=True):
        expected = row if isinstance(row, list) else [] if row is None else [row]
        assert isinstance(held, list) is isinstance(row, list)
        for picture, source in zip(expected, sources(held), strict=True):
            assert source.form == "parquet"
            assert read_bytes(source) == (picture if isinstance(picture, bytes) else picture["bytes"])


def held_in_parquet(values: list[Any], kind: Any, path: Path, **options: Any) -> list[Any]:
    """What rows of a parquet file hold of a column of pictures."""
    pyarrow.parquet.write_table(pyarrow.table({"images": pyarrow.array(values, kind)}), path, **options)
    return list(stored_pictures(pyarrow.parquet.ParquetFile(path), str(path), "images"))


MANY = pyarrow.list_(pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string()), ("w", pyarrow.int32())]))
ALL = {"bytes": PNG, "path": "a.png", "w": 3}
NONE: dict[str, Any] = {"bytes": None, "path": None, "w": None}


def test_a_place_in_a_parquet_file_that_holds_nothing_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    held_in_parquet([[NONE], [ALL]], MANY, path)
    assert np.array_equal(decode(PictureSource("parquet", f"{path}#1/images/0", "w"), SAME).array, pixels(20, 30))
    for place in (f"{path}#0/images/0", f"{path}#1/images/1", f"{path}#2/images/0", f"{path}#0/image/0", "nowhere"):
        with pytest.raises(PictureError, match="w: "):
            decode(PictureSource("parquet", place, "w"), SAME)
