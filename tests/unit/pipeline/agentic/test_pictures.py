"""Episodes in environments that show pictures: what the policy sees, what is trained on, and what is recorded."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_vision import build_vision_model, build_vision_tokenizer, save_vision_pretrained

from roll.configs.sections.model import ModelArgs
from roll.configs.tables.sight import VisionModel
from roll.datasets.pictures.decode import with_pixels
from roll.datasets.pictures.expansion import shorten
from roll.envs.base import Env, EnvStep
from roll.envs.frozen_lake import FrozenLake
from roll.envs.sokoban import Sokoban
from roll.models.vision.files import vision_of
from roll.pipeline.agentic.observations import EnvCrash, parts_of
from roll.pipeline.agentic.sample_forms import ChatEncoder
from roll.report.samples import SampleReader, thumbnail
from roll.rl.records.recorder import RolloutRecorder, rollout_records
from roll.run.records.replay import read
from roll.types.group_codec import RecordedGroup, load_groups, save_groups
from roll.types.rollout import Task, Trajectory, TrajectoryGroup
from roll.types.texts import RowTexts
from tests.unit.pipeline.agentic.parts import GO, Script, env_config, job, player

RIGHT = "<answer>Right</answer>"
LAKE = {"env_type": "frozen_lake", "env_config": {"size": 2, "p": 1.0, "render_mode": "rgb_array"}}


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    tokenizer = build_vision_tokenizer()
    directory = save_vision_pretrained(tmp_path_factory.mktemp("sees"), build_vision_model(tokenizer), tokenizer)
    found = vision_of(ModelArgs(model_name_or_path=str(directory)))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def encoder(vision: VisionModel) -> ChatEncoder:
    return ChatEncoder(build_vision_tokenizer(), vision=vision)


def shades(*levels: int) -> list[np.ndarray]:
    return [np.full((28, 56, 3), level, np.uint8) for level in levels]


class Gallery(Env):
    """Shows what it is made with, one thing a turn."""

    instruction = "Look."
    things: list[Any] = []

    def reset(self, seed: int) -> Any:
        self.turn = 0
        return self.things[0]

    def step(self, action: str) -> EnvStep:
        self.turn += 1
        over = self.turn == len(self.things)
        return EnvStep("" if over else self.things[self.turn], 1.0, over, False, {})


def play(encoder: ChatEncoder, things: list[Any], texts: list[str], **changes: Any) -> tuple[Trajectory, Script]:
    Gallery.things = things
    script = Script(encoder, texts)
    config = env_config(env_type=f"{__name__}:Gallery", env_manager_cls="vl_trajectory", **changes)
    (row,) = asyncio.run(player(encoder, script, config).play(job()))
    return row, script


def test_a_drawn_lake_has_a_cell_for_each_symbol() -> None:
    drawn, written = FrozenLake(size=4, p=0.6, render_mode="rgb_array", cell_pixels=28), FrozenLake(size=4, p=0.6)
    picture, text = drawn.reset(5), written.reset(5)
    assert (picture.shape, picture.dtype) == ((112, 112, 3), np.uint8)
    cells = {}
    for row, line in enumerate(text.splitlines()):
        for column, symbol in enumerate(line):
            cell = picture[28 * row : 28 * row + 28, 28 * column : 28 * column + 28].tobytes()
            assert cells.setdefault(symbol, cell) == cell
    assert len(set(cells.values())) == len(cells) == 4
    assert "red disc" in drawn.instruction
    assert "P is you" in written.instruction


def test_a_drawn_room_shows_what_the_symbols_show() -> None:
    drawn, written = Sokoban(render_mode="rgb_array", cell_pixels=32), Sokoban()
    picture, text = drawn.reset(1), written.reset(1)
    cells: dict[str, bytes] = {}
    for _ in range(12):
        for row, line in enumerate(text.splitlines()):
            for column, symbol in enumerate(line):
                cell = picture[32 * row : 32 * row + 32, 32 * column : 32 * column + 32].tobytes()
                assert cells.setdefault(symbol, cell) == cell
        picture, text = drawn.step("Right").observation, written.step("Right").observation
    assert len(set(cells.values())) == len(cells) >= 4


def test_each_turn_shows_a_picture_and_the_row_has_all(encoder: ChatEncoder, vision: VisionModel) -> None:
    script = Script(encoder, [RIGHT, "<answer>Down</answer>"])
    config = env_config(
        env_manager_cls="roll.pipeline.agentic.env_manager.vl_traj_env_manager.VLTrajEnvManager",
        pre_step_template="Turn {turn_idx}: ",
        next_step_template=" {actions_left} left",
        **LAKE,
    )
    (row,) = asyncio.run(player(encoder, script, config, max_length=600).play(job()))
    assert row.failure is None
    assert row.reward == 1.0
    shown = "<|vision_start|>" + "<|image_pad|>" * 4 + "<|vision_end|>"
    assert encoder.show(row.input_ids) == (
        f"<|im_start|>user\nTurn 1: {shown} 5 left<|im_end|>\n<|im_start|>assistant\n{RIGHT}<|im_end|>\n"
        f"<|im_start|>user\nTurn 2: {shown} 4 left<|im_end|>\n<|im_start|>assistant\n<answer>Down</answer><|im_end|>"
    )
    pads = np.flatnonzero(row.input_ids == vision.image_token)
    assert [(each.start, each.length) for each in row.media] == [(pads[0], 4), (pads[4], 4)]
    assert not row.response_mask[pads].any()
    assert [len(request.media) for request in script.requests] == [1, 2]
    lake = FrozenLake(size=2, p=1.0, render_mode="rgb_array")
    for each, sent, drawn in zip(
        row.media, script.requests[1].media, (lake.reset(0), lake.step("Right").observation), strict=True
    ):
        assert each.picture.pixels is None, "rows travel with the file, and are decoded where they are computed with"
        assert np.array_equal(with_pixels(each.picture).array, sent.picture.array)
        assert np.array_equal(sent.picture.array, drawn)
    assert [turn.observation for turn in row.turns] == ["[picture]", "[picture]"]
    assert [turn.num_pictures for turn in row.turns] == [1, 1]


def test_texts_and_several_pictures_stand_where_the_environment_says(encoder: ChatEncoder) -> None:
    one, two = shades(10, 200)
    png = io.BytesIO()
    Image.fromarray(two).save(png, "PNG")
    things = [
        {"prompt": "A <image> and <image>!", "image": [one, Image.fromarray(two)]},
        "no <image> here",
        {"prompt": "again", "image": png.getvalue()},
    ]
    row, script = play(encoder, things, [GO], agent_template="{observation} -> {turn_idx}")
    shown = "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>"
    end, asks = "<|im_end|>\n", "<|im_start|>user\n"
    says = f"<|im_start|>assistant\n{GO}<|im_end|>"
    assert encoder.show(row.input_ids) == (
        f"{asks}A {shown} and {shown}! -> 1{end}{says}\n{asks}no <image> here -> 2{end}{says}\n"
        f"{asks}{shown}again -> 3{end}{says}"
    )
    assert [turn.num_pictures for turn in row.turns] == [2, 0, 1]
    assert row.turns[0].observation == "A [picture] and [picture]!"
    first, second, third = (each.picture.digest for each in row.media)
    assert (first != second, second == third) == (True, True)
    for request in script.requests:
        assert len(shorten(request.prompt_ids, request.media)) == len(request.prompt_ids) - len(request.media)


def test_a_text_that_says_a_picture_is_no_action_and_no_prompt(encoder: ChatEncoder) -> None:
    row, script = play(encoder, shades(1, 2, 3), ["<answer>go</answer><|image_pad|>"], max_tokens_per_step=20)
    assert len(script.requests) == 3, "the end of the turn came behind it"
    script = Script(encoder, ["go<|image_pad|>"])
    config = env_config(env_type=f"{__name__}:Gallery", env_manager_cls="vl_trajectory", max_tokens_per_step=3)
    (row,) = asyncio.run(player(encoder, script, config, format_penalty=-0.5).play(job()))
    assert (row.failure, len(row.turns)) == (None, 1)
    assert (row.turns[0].action, row.reward) == (None, 0.5)
    row, _ = play(encoder, ["<|image_pad|>"], [GO])
    assert row.failure is not None
    assert "1 placeholders for 0 pictures" in row.failure


@pytest.mark.parametrize(
    "shown, message",
    [
        ({"prompt": "<image>", "image": []}, "0 pictures and a prompt with 1 <image>"),
        ({"prompt": 3, "image": shades(1)}, "int as observation"),
        ({"prompt": "<image>", "images": shades(1)}, "a mapping with images as observation"),
        (np.zeros((4, 4, 3), np.float32), "float32"),
        (np.zeros((4, 4, 7), np.uint8), "cannot be shown"),
        ({"image": "a.png"}, "it is str"),
        (b"GIF89a broken", "cannot be shown"),
        (np.zeros((3000, 4, 3), np.uint8), "200 times"),
        (7, "it is int, not a PIL image"),
        ("half a pair: \ud800", "not a text"),
    ],
)
def test_what_is_no_observation_fails_its_episode(shown: Any, message: str, vision: VisionModel) -> None:
    with pytest.raises(EnvCrash, match=message):
        parts_of(shown, "step", vision.sizes, "Lake, seed 3")


def test_a_picture_for_an_env_manager_of_text_names_the_other_one() -> None:
    with pytest.raises(EnvCrash, match="need env_manager_cls: vl_trajectory"):
        parts_of(shades(1)[0], "reset", None, "")


def test_a_first_prompt_that_would_lose_its_picture_fails(encoder: ChatEncoder) -> None:
    Gallery.things = shades(1)
    config = env_config(env_type=f"{__name__}:Gallery", env_manager_cls="vl_trajectory", max_tokens_per_step=4)
    (row,) = asyncio.run(player(encoder, Script(encoder, [GO]), config, max_length=11).play(job()))
    assert row.failure is not None
    assert "the first prompt has" in row.failure
    assert "image_max_pixels" in row.failure


def test_files_of_groups_and_records_hold_the_pictures(encoder: ChatEncoder, tmp_path: Path) -> None:
    row, _ = play(encoder, [*shades(5), "words", *shades(250)], [GO])
    group = TrajectoryGroup(Task("t", "Gallery", np.zeros(0, np.int32)), 4, (row,))
    save_groups(tmp_path / "saved", [RecordedGroup(4, "t", (row,))])
    ((again,),) = [group.trajectories for group in load_groups(tmp_path / "saved")]
    assert again.media == row.media
    assert again.turns == row.turns
    records = rollout_records(group, [RowTexts(row.response_text, turns=row.turns)], media=[row.media])
    RolloutRecorder(tmp_path / "rollouts").record(3, records)
    (tmp_path / "rollouts").rename(tmp_path / "moved")
    line = json.loads((tmp_path / "moved" / "step_000003.jsonl").read_text())
    assert "num_pictures" not in line["turns"][0]
    (record,) = read(tmp_path / "moved" / "step_000003.jsonl")
    assert [len(turn.pictures) for turn in record.turns] == [1, 0, 1]
    assert np.array(Image.open(record.turns[2].pictures[0].place)).mean() == 250
    ((sample,),) = [group.samples for group in SampleReader().groups([record])]
    assert [len(message.pictures) for message in sample.messages] == [1, 0, 0, 0, 1, 0]
    image = thumbnail(sample.messages[0].pictures[0]).image
    assert image is not None
    assert image.startswith("data:image/webp;base64,")
