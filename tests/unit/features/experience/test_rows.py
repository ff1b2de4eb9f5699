"""Groups and tasks on disk come back as they were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.configs.sections.experience import ExperienceConfig
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.errors import ConfigError, StorageError
from roll.features.experience.directory import DirectoryBuffer
from roll.features.experience.reader import ExperienceReader, ReadGroups, Reading
from roll.features.experience.rows import Experience, check_tasks, fields_of, pack, task_of, unpack
from roll.types.media import Picture, PictureSource, Shown
from roll.types.rollout import Task, TrajectoryGroup
from roll.types.texts import Turn
from tests.unit.features.experience.made import experience, row, told


def test_a_group_comes_back_as_it_was() -> None:
    for one in (experience(3, step=5, version=4), experience(0, is_kept=False, size=1), experience(2**40, size=5)):
        assert told(unpack(pack(one))) == told(one)
    one = experience(3, version=4)
    younger = TrajectoryGroup(one.group.task, 3, (row(3, 0, 6), row(3, 1, 5)))
    assert one.oldest_version == 4
    assert Experience(0, younger).oldest_version == 5
    nothing = replace(row(3, 0, 6), response_mask=np.zeros(5, np.bool_), policy_versions=np.full(5, -1, np.int32))
    assert Experience(0, TrajectoryGroup(one.group.task, 3, (nothing,))).oldest_version == -1
    # A model that has gone astray gives them; what becomes of the run is said by those who look at the values.
    odd = np.array([0, 0, np.nan, -np.inf, -0.1], np.float32)
    broken = replace(row(3, 0, 1), log_probs=odd, token_rewards=-odd, turn_rewards=odd[2:4], reward=float("inf"))
    one = Experience(0, TrajectoryGroup(experience(3).group.task, 3, (broken, row(3, 1, 1))))
    assert repr(told(unpack(pack(one)))) == repr(told(one))


def test_a_damaged_group_is_never_taken_for_another_one() -> None:
    one = experience(3, size=4)
    content, random = pack(one), np.random.default_rng(0)
    damaged = [content[:end] for end in {0, *random.integers(len(content), size=50).tolist()}]
    for place in random.integers(len(content), size=300):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(random.integers(8))
        damaged.append(bytes(flipped))
    num_told = 0
    for found in damaged:
        try:
            read = unpack(found)
        except Exception:  # numpy has several
            num_told += 1
        else:
            assert told(read) == told(one)  # of what no value hangs on
    assert num_told > 100


def test_numbers_of_numpy_are_numbers() -> None:
    """A rollout loop of the user's own makes such attempts."""
    half: Any = np.float32(0.5)
    turn = Turn("seen", "said", None, half, {"n": half})
    own = replace(row(3, 0, 1), reward=half, index=np.int64(1), state_key=np.int64(7), turns=(turn,))
    one = Experience(0, TrajectoryGroup(experience(3).group.task, 3, (own,)))
    (found,) = unpack(pack(one)).group.trajectories
    assert (found.reward, found.index, found.state_key) == (0.5, 1, 7)
    assert found.turns == (Turn("seen", "said", None, 0.5, {"n": 0.5}),)


def test_rows_keep_where_their_pictures_are() -> None:
    source = PictureSource("file", "black.png", "rows.jsonl:3, column images[0]")
    black = Picture("black", 28, 56, np.zeros((28, 56, 3), np.uint8), source, (1.0, 0.5))
    shown = replace(row(3, 0, 6), media=(Shown(black, 0, 1),))
    group = TrajectoryGroup(experience(3).group.task, 3, (shown,))
    (found,) = unpack(pack(Experience(0, group))).group.trajectories
    assert found.media == shown.media and found.media[0].picture.pixels is None
    drawn = replace(shown, media=(Shown(replace(black, source=None), 0, 1),))
    with pytest.raises(ValueError, match="has no place from which it could be read again"):
        pack(Experience(0, TrajectoryGroup(experience(3).group.task, 3, (drawn,))))


def task(**payload: Any) -> Task:
    return Task("row 7", "math", np.array([1, 2], np.int32), payload=payload)


def test_texts_lists_numbers_and_pictures_come_back_whole() -> None:
    """The tests of a programme are as long as that."""
    payload = {"text": "ä\ud83d\u2028" * 10_000, "cases": list(range(5_000)), "deep": {"a": [{"b": [None, True, 0.1]}]}}
    messages = ({"role": "user", "content": "q" * 20_000}, {"role": "user", "content": [{"type": "text", "text": "x"}]})
    group = experience(3).group
    whole = TrajectoryGroup(replace(group.task, payload=payload, messages=messages), 3, group.trajectories)
    back = unpack(pack(Experience(0, whole))).group.task
    assert back.payload == payload and back.messages == messages
    values = {"large": 2**4000, "small": -1, "share": 0.1, "inf": float("inf"), "yes": True}
    back = task_of(json.loads(json.dumps(fields_of(task(**values)))))
    assert back.payload == values and back.payload["yes"] is True
    nan = task_of(json.loads(json.dumps(fields_of(task(x=float("nan"))))))
    assert str(nan.payload["x"]) == "nan"
    shown = replace(task(), pictures=(PictureSource("file", "a.png", "rows.jsonl:1"),))
    check_tasks([shown])
    assert task_of(json.loads(json.dumps(fields_of(shown)))).pictures == shown.pictures


@pytest.mark.parametrize(
    "payload, what",
    [
        ({"day": date(2026, 1, 2)}, "day of row 7 holds a value of type date"),
        ({"a": [{"b": b"x"}]}, "a of row 7 holds a value of type bytes"),
        ({"a": {1: 2}}, "a of row 7 holds a mapping whose keys are of type int"),
        ({"t": (1, 2)}, "t of row 7 holds a value of type tuple"),
    ],
)
def test_what_json_would_make_into_something_else_is_refused(payload: Mapping[str, Any], what: str) -> None:
    with pytest.raises(StorageError, match=what):
        fields_of(task(**payload))
    with pytest.raises(ConfigError, match=f"mode: {what}, which experience cannot store. Write it as a text"):
        check_tasks([task(fine="yes"), task(**payload)])


def read_groups(directory: Path) -> ReadGroups:
    buffer = DirectoryBuffer(directory)
    return ReadGroups(ExperienceReader(buffer, Reading(ExperienceConfig(), 2, max_staleness=0)), filters=False)


def test_a_run_goes_on_with_the_groups_after_its_checkpoint(tmp_path: Path) -> None:
    buffer = DirectoryBuffer(tmp_path)
    for step in range(3):
        buffer.write([experience(number, step, step) for number in (2 * step, 2 * step + 1)])
        buffer.finish(step, [2 * step, 2 * step + 1])
    first = read_groups(tmp_path)
    assert first.restore(tmp_path, None, 0) == 0
    groups = first.collect(0)
    assert [group.group_id for group in groups.groups] == [0, 1]
    assert first.metrics()["rollout/missing_groups"] == 0.0
    assert first.rescore(groups, groups.groups, 0) is groups
    state = first.save(tmp_path)
    assert state["data"] == {}
    first.saved(1)
    assert len(buffer.entries()) == 4

    again = read_groups(tmp_path)
    again.restore(tmp_path, state["experience"], 1)
    found: list[StepGroups] = [again.collect(step) for step in (1, 2)]
    assert [[group.group_id for group in groups.groups] for groups in found] == [[2, 3], [4, 5]]
