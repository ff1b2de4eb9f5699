"""The size that a picture becomes, against transformers' own arithmetic."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from roll.configs.tables.sight import MOST_RATIO, PictureSizes, SquareSizes
from roll.configs.tables.vision import vision_model
from roll.datasets.pictures.decode import all_decoded, decode, measure, with_pixels
from roll.errors import ConfigError, PictureError
from roll.models.vision.inputs import squares
from roll.types.media import PictureSource, Shown, media_fields, media_of
from tests.unit.datasets.pictures.files import pixels

SIDES = st.integers(1, 9000)


@settings(max_examples=400, deadline=None, database=None, derandomize=True)
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
@given(SIDES, SIDES, st.integers(1, 400), st.integers(0, 3000))
@example(15, 200, 16, 6144)
@example(1, 1, 16, 6144)
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


@settings(max_examples=400, deadline=None, database=None, derandomize=True)
@given(SIDES, SIDES, st.sampled_from([56, 448]), st.integers(1, 14))
@example(1, 1, 448, 12)
@example(9000, 1, 448, 12)
def test_squares_are_those_of_internvl(height: int, width: int, side: int, most: int) -> None:
    """A picture of that size is cut into the same squares again, and no squares are more than the most."""
    from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

    sizes = SquareSizes(side, side**2, most * side**2, tokens=256)
    columns, rows = get_optimal_tiled_canvas((height, width), (side, side), 1, most)
    found = sizes.size(height, width)
    assert found == (rows * side, columns * side) == sizes.size(*found)
    count = rows * columns
    assert sizes.num_tokens(*found) == 256 * (count + (count > 1)) <= sizes.most_tokens


@pytest.mark.parametrize(
    ("width", "height", "count"), [(200, 150, 13), (640, 480, 13), (333, 97, 13), (61, 57, 1), (112, 56, 3)]
)
def test_squares_of_a_file_are_those_of_transformers(width: int, height: int, count: int, tmp_path: Path) -> None:
    """The small copy behind them is made of the file's pixels too, not of the squares'. Compares with the processor
    that resizes by PIL; that of torchvision rounds otherwise, by one level of 255."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    config = {"model_type": "internvl", "vision_config": {"image_size": 56, "patch_size": 14}}
    model = vision_model(config, {})
    assert model is not None
    image = Image.fromarray(pixels(height, width))
    image.save(tmp_path / "a.png")
    processor = GotOcr2ImageProcessorPil(
        size={"height": 56, "width": 56}, crop_to_patches=True, image_mean=model.mean, image_std=model.std
    )
    expected = processor(images=[image], return_tensors="pt")["pixel_values"]
    source = PictureSource("file", str(tmp_path / "a.png"), "here")
    picture = decode(source, model.sizes)
    made = squares(picture, model)
    assert made.shape == expected.shape == (count, 3, 56, 56)
    assert (made - expected).abs().max() < 1e-5
    later = with_pixels(measure(source, model.sizes))
    (kept,) = all_decoded([media_of(json.loads(json.dumps(media_fields((Shown(picture, 0, count),)))))])
    for again in (later, kept[0].picture):
        assert torch.equal(squares(again, model), made) and (again.height, again.width) == model.sizes.size(
            height, width
        )


def test_a_picture_of_gemma_is_one_square_of_any_shape() -> None:
    config = {
        "model_type": "gemma3",
        "vision_config": {"image_size": 896, "patch_size": 14},
        "mm_tokens_per_image": 256,
    }
    model = vision_model({**config, "image_token_index": 7, "boi_token_index": 8, "eoi_token_index": 9}, {})
    assert model is not None
    for shape in ((1, 1), (20, 9000), (896, 896)):
        assert model.sizes.size(*shape) == (896, 896)
    assert (model.sizes.num_tokens(896, 896), model.sizes.most_tokens, model.sizes.least_tokens) == (256, 256, 256)
    assert (model.placeholders, model.template_token, model.sizes.resample) == ((7,), 8, 2)
    assert model.sizes.text == "256 tokens each (of any size: 256 for a square of 896 x 896)"
    with pytest.raises(ConfigError, match="the smallest picture that gemma3 takes has 896 x 896 = 802816 pixels"):
        model.with_limits(None, 100_000)
    with pytest.raises(ConfigError, match="do_pan_and_scan: true.* Set it to false"):
        vision_model(config, {"do_pan_and_scan": True})


def test_fewer_pixels_are_fewer_squares() -> None:
    config = {"model_type": "internvl", "vision_config": {"image_size": [448, 448], "patch_size": [14, 14]}}
    model = vision_model(config, {"max_patches": 12})
    assert model is not None and model.template_token == model.image_token == -1
    assert model.sizes.text == (
        "256 to 3,328 tokens each (1 to 12 squares and a small copy; 256 for a square of 448 x 448)"
    )
    assert model.sizes.size(900, 1800) == (896, 1792)
    assert model.with_limits(None, 4 * 448**2).sizes.size(900, 1800) == (448, 896)
    assert model.with_limits(2 * 448**2, None).sizes.size(448, 448) == (896, 896)
