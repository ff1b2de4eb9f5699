"""A task comes out of a buffer as it went in, or a run says before it samples that it would not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pytest

from roll.errors import ConfigError, StorageError
from roll.features.experience.rows import Experience, check_tasks, fields_of, pack, task_of, unpack
from roll.types.media import PictureSource
from roll.types.rollout import Task, TrajectoryGroup
from tests.unit.features.experience.made import experience


def task(**payload: Any) -> Task:
    return Task("row 7", "math", np.array([1, 2], np.int32), payload=payload)


def test_long_texts_and_lists_of_a_row_come_back_whole_and_so_do_its_messages() -> None:
    """The tests of a programme are as long as that."""
    payload = {"text": "ä\ud83d\u2028" * 10_000, "cases": list(range(5_000)), "deep": {"a": [{"b": [None, True, 0.1]}]}}
    messages = ({"role": "user", "content": "q" * 20_000}, {"role": "user", "content": [{"type": "text", "text": "x"}]})
    group = experience(3).group
    whole = TrajectoryGroup(replace(group.task, payload=payload, messages=messages), 3, group.trajectories)
    back = unpack(pack(Experience(0, whole))).group.task
    assert back.payload == payload and back.messages == messages


def test_numbers_of_a_row_stay_what_they_are() -> None:
    values = {"large": 2**4000, "small": -1, "share": 0.1, "inf": float("inf"), "yes": True}
    back = task_of(json.loads(json.dumps(fields_of(task(**values)))))
    assert back.payload == values and back.payload["yes"] is True
    nan = task_of(json.loads(json.dumps(fields_of(task(x=float("nan"))))))
    assert str(nan.payload["x"]) == "nan"


@pytest.mark.parametrize(
    "payload, what",
    [
        ({"day": date(2026, 1, 2)}, "day of row 7 holds a value of type date"),
        ({"a": [{"b": b"x"}]}, "a of row 7 holds a value of type bytes"),
        ({"a": {1: 2}}, "a of row 7 holds a mapping whose keys are of type int"),
        ({"n": 2**5000}, "n of row 7 holds a number of 5001 bits"),
        ({"t": (1, 2)}, "t of row 7 holds a value of type tuple"),
    ],
)
def test_what_json_would_make_into_something_else_is_refused(payload: Mapping[str, Any], what: str) -> None:
    with pytest.raises(StorageError, match=what):
        fields_of(task(**payload))
    with pytest.raises(ConfigError, match=f"mode: {what}, which experience cannot store. Write it as a text"):
        check_tasks([task(fine="yes"), task(**payload)])


def test_pictures_come_back_by_where_they_are() -> None:
    shown = replace(task(), pictures=(PictureSource("file", "a.png", "rows.jsonl:1"),))
    check_tasks([shown])
    assert task_of(json.loads(json.dumps(fields_of(shown)))).pictures == shown.pictures
