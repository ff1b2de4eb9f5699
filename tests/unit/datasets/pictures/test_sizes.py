"""The size that a picture becomes, against transformers' own arithmetic."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from roll.configs.tables.vision import MOST_RATIO, PictureSizes, vision_model
from roll.errors import PictureError

SIDES = st.integers(1, 9000)


@settings(max_examples=2000, deadline=None, database=None, derandomize=True)
@given(SIDES, SIDES, st.sampled_from([28, 32]), st.integers(1, 400), st.integers(0, 3000))
@example(10, 600, 28, 4, 1276)
@example(1, 1, 28, 4, 0)
def test_sizes_are_those_of_smart_resize(height: int, width: int, factor: int, least: int, more: int) -> None:
    """Compares with the function that the families' processors call. Where its result would be refused by the same
    function, which is how engines get it, we refuse the picture at once."""
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    sizes = PictureSizes(factor, least * factor**2 - 7, (least + more) * factor**2 + 5)
    try:
        expected = smart_resize(height, width, factor, sizes.min_pixels, sizes.max_pixels)
    except ValueError:
        expected = (1, MOST_RATIO + 1)
    if max(expected) > MOST_RATIO * min(expected):
        with pytest.raises(PictureError, match="one side is over 200 times the other"):
            sizes.size(height, width)
        return
    assert sizes.size(height, width) == expected
    assert sizes.num_tokens(*expected) <= sizes.most_tokens
    opened = factor**2, sizes.most_tokens * factor**2
    assert smart_resize(*expected, factor, *opened) == expected  # no engine resizes it again


def test_most_tokens_is_near_what_the_limit_says() -> None:
    assert PictureSizes(28, 3136, 1280 * 784).most_tokens == 1280
    assert PictureSizes(32, 65536, 16384 * 1024).most_tokens == 16384
    assert PictureSizes(28, 3136, 3136).most_tokens == 33


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(st.integers(28, 9000), st.integers(28, 9000), st.integers(1, 400), st.integers(0, 3000))
def test_limits_of_glm_count_both_frames(height: int, width: int, least: int, more: int) -> None:
    from transformers.models.glm4v.image_processing_glm4v import smart_resize

    area = 28 * 28
    limits = {"shortest_edge": 2 * least * area - 13, "longest_edge": 2 * (least + more) * area + 9}
    model = vision_model({"model_type": "glm4v", "vision_config": {}}, {"size": limits})
    assert model is not None
    try:
        expected = smart_resize(2, height, width, 2, 28, *limits.values())
    except ValueError:
        expected = (1, MOST_RATIO + 1)
    if max(expected) > MOST_RATIO * min(expected):
        with pytest.raises(PictureError, match="one side is over 200 times the other"):
            model.sizes.size(height, width)
        return
    assert model.sizes.size(height, width) == expected
    opened = 2 * area, 2 * model.sizes.most_tokens * area
    assert smart_resize(2, *expected, 2, 28, *opened) == expected
