"""From one placeholder per picture to one id per picture token, and back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.configs.tables.sight import VisionModel
from roll.configs.tables.vision import vision_model
from roll.datasets.pictures.expansion import expand, shorten
from roll.errors import PictureError
from roll.types.media import Picture, Shown, check_spans

IMAGE, VIDEO = 9, 8


def model() -> VisionModel:
    config = {"model_type": "qwen2_vl", "vision_config": {}, "image_token_id": IMAGE, "video_token_id": VIDEO}
    made = vision_model(config, {})
    assert made is not None
    return made


def picture(rows: int, columns: int) -> Picture:
    return Picture(f"{rows}x{columns}", 28 * rows, 28 * columns, None)


def test_a_placeholder_becomes_as_many_as_its_picture_has_tokens() -> None:
    prompt = expand(np.array([4, IMAGE, 5, IMAGE, IMAGE]), [picture(1, 3), picture(2, 1), picture(1, 1)], model())
    assert prompt.ids.tolist() == [4, *[IMAGE] * 3, 5, *[IMAGE] * 2, IMAGE] and prompt.ids.dtype == np.int32
    assert [(shown.start, shown.length) for shown in prompt.media] == [(1, 3), (5, 2), (7, 1)]
    assert shorten(prompt.ids, prompt.media).tolist() == [4, IMAGE, 5, IMAGE, IMAGE]
    prompt = expand(np.array([4, 5]), [], model())
    assert prompt.ids.tolist() == [4, 5] and prompt.media == ()
    with pytest.raises(ValueError, match="a picture at tokens 3 to 6 of 5"):
        shorten(np.zeros(5, np.int32), (Shown(picture(1, 3), 3, 3),))


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(st.lists(st.one_of(st.integers(0, 7), st.tuples(st.integers(1, 6), st.integers(1, 6))), max_size=30), st.data())
def test_shortening_is_the_inverse_whatever_follows(items: list[int | tuple[int, int]], data: st.DataObject) -> None:
    """A placeholder that the answer holds has no span, and stays."""
    pictures = [picture(*item) for item in items if isinstance(item, tuple)]
    short = np.array([IMAGE if isinstance(item, tuple) else item for item in items], np.int32)
    prompt = expand(short, pictures, model())
    check_spans(prompt.media, len(prompt.ids), "row")
    inside = np.zeros(len(prompt.ids), bool)
    for shown in prompt.media:
        inside[shown.start : shown.end] = True
        assert shown.length == shown.picture.height * shown.picture.width // 784
    assert np.array_equal(inside, prompt.ids == IMAGE)
    answer = np.array(data.draw(st.lists(st.integers(0, 12), max_size=10)), np.int32)
    row = np.concatenate([prompt.ids, answer])
    assert np.array_equal(shorten(row, prompt.media), np.concatenate([short, answer]))


@pytest.mark.parametrize(
    ("ids", "num_pictures", "complaint"),
    [([4, 5], 1, "0 placeholders for 1 pictures"), ([IMAGE], 0, "1 placeholders for 0"), ([VIDEO], 0, "videos")],
)
def test_placeholders_and_pictures_have_to_be_as_many(ids: list[int], num_pictures: int, complaint: str) -> None:
    with pytest.raises(PictureError, match=complaint):
        expand(np.array(ids), [picture(1, 1)] * num_pictures, model())
