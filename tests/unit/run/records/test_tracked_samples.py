"""Which rollouts the trackers get."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from roll.configs.sections.rollout import RecorderConfig
from roll.rl.records.recorder import RecordLimits
from roll.rl.records.step_records import tracked_samples
from roll.types.media import Picture, PictureSource
from roll.types.texts import Turn
from tests.unit.run.records.test_recorder import record


def test_groups_take_turns_and_long_texts_are_cut() -> None:
    records = [record(group, response_text=f"{group}{attempt}" * 20) for group in (0, 1) for attempt in "ab"]
    found = tracked_samples(records, RecordLimits(num_characters=4), count=3)
    assert [(sample.group, sample.response[:4]) for sample in found] == [("0", "0a\n["), ("1", "1a\n["), ("0", "0b\n[")]


def test_an_episode_is_told_turn_by_turn() -> None:
    turns = (Turn("a lake", "go left", "left", 0.0), Turn("ice", "go on", "left", 1.0))
    (sample,) = tracked_samples([record(0, turns=turns, ground_truth=None)], RecordLimits(), count=5)
    assert sample.response == "[sees] a lake\n[says] go left\n[sees] ice\n[says] go on"
    assert sample.ground_truth == ""


def test_samples_are_tracked_every_so_many_steps_and_after_each_validation() -> None:
    keys = RecorderConfig(tracked_samples=4, tracked_steps=10)
    assert [keys.is_tracked(step, "train") for step in (9, 10, 11)] == [False, True, False]
    assert keys.is_tracked(9, "val") and keys.is_tracked(9, "val.hard")
    assert not RecorderConfig().is_tracked(10, "val")


def test_small_copies_of_the_first_pictures_go_along(tmp_path: Path) -> None:
    """Of the prompt, then of the turns; what is gone, elsewhere or not kept is left out."""
    Image.fromarray(np.full((500, 700, 3), 9, np.uint8)).save(tmp_path / "large.png")
    shown = PictureSource("file", str(tmp_path / "large.png"), "rows.jsonl:1")
    gone = PictureSource("file", str(tmp_path / "gone.png"), "rows.jsonl:1")
    elsewhere, inline = PictureSource("address", "https://nobody.invalid/a.png", ""), PictureSource("inline", "", "")
    of_turn = Picture("digest", 2, 2, None, shown)
    for pictures, turns, count in (
        ((shown, gone), (), 1),
        ((elsewhere, inline), (), 0),
        ((), ((of_turn,), (of_turn,), (of_turn,)), 2),
    ):
        (sample,) = tracked_samples([record(0, pictures=pictures, turn_pictures=turns)], RecordLimits(), count=5)
        assert len(sample.pictures) == count
        for picture in sample.pictures:
            small = Image.open(io.BytesIO(picture))
            assert small.width * small.height <= 128 * 128 and small.getpixel((0, 0)) == (9, 9, 9)
