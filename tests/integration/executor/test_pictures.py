"""Pictures on their way through real Ray: decoded beside the driver, and fetched where they are shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from roll.configs.tables.sight import VisionModel
from roll.configs.tables.vision import vision_model
from roll.distributed.executor.pictures import PictureLoader
from roll.distributed.executor.pixels import awaited_pixels, with_pixels
from roll.distributed.executor.processes.launch import RayRuntime
from roll.errors import PictureError
from roll.types.media import PictureSource, Prompt
from roll.types.rollout import Task

MODEL = {"model_type": "qwen2_5_vl", "vision_config": {"patch_size": 14}, "image_token_id": 9, "video_token_id": 8}
LIMITS = {"size": {"shortest_edge": 28 * 28, "longest_edge": 112 * 112}}


@pytest.fixture
def model() -> VisionModel:
    found = vision_model(MODEL, LIMITS)
    assert found is not None
    return found


def task(*files: Path) -> Task:
    sources = tuple(PictureSource("file", str(file), f"rows.jsonl:{i}") for i, file in enumerate(files))
    return Task("t", "d", np.array([5, *([9] * len(files)), 6], np.int32), pictures=sources)


def saved(directory: Path, name: str, height: int, width: int) -> Path:
    shade = np.full((height, width, 3), len(name), np.uint8)
    Image.fromarray(shade).save(directory / name)
    return directory / name


def test_a_prompt_has_its_pictures_behind_handles_and_their_pixels_on_request(
    runtime: RayRuntime, model: VisionModel, tmp_path: Path
) -> None:
    files = saved(tmp_path, "one.png", 56, 28), saved(tmp_path, "another.png", 28, 84)

    async def ask() -> tuple[Prompt, object]:
        prompt = await PictureLoader(model, 10).prompt(task(*files))
        return prompt, await awaited_pixels(prompt.media)

    prompt, awaited = asyncio.run(ask())
    assert prompt.ids.tolist() == [5, 9, 9, 9, 9, 9, 6]
    assert [(shown.start, shown.length) for shown in prompt.media] == [(1, 2), (3, 3)]
    assert not any(shown.picture.is_here for shown in prompt.media)
    (here, again) = with_pixels([prompt.media, prompt.media])
    assert here == again == awaited == prompt.media  # pixels do not count when pictures are compared
    for shown, file in zip(here, files, strict=True):
        assert np.array_equal(shown.picture.array, np.asarray(Image.open(file)))


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"", "rows.jsonl:0"), (b"\x89PNG\r\n\x1a\n" + b"0" * 40, "rows.jsonl:0"), (None, "it cannot be read")],
    ids=["empty", "broken", "missing"],
)
def test_a_picture_that_cannot_be_shown_says_where_it_stands(
    content: bytes | None, what: str, runtime: RayRuntime, model: VisionModel, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "bad.png").write_bytes(content)
    with pytest.raises(PictureError, match=what) as raised:
        asyncio.run(PictureLoader(model, 10).prompt(task(tmp_path / "bad.png")))
    assert "rows.jsonl:0" in str(raised.value)


def test_a_prompt_that_its_pictures_make_too_long_is_refused(
    runtime: RayRuntime, model: VisionModel, tmp_path: Path
) -> None:
    file = saved(tmp_path, "large.png", 112, 112)
    with pytest.raises(PictureError, match="18 tokens with its pictures, more than prompt_length = 17"):
        asyncio.run(PictureLoader(model, 17).prompt(task(file)))
