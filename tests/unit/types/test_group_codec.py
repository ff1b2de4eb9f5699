"""Groups in a file come back bit for bit, and nothing in it is a pickle."""

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.types.group_codec import RecordedGroup, decode, encode, files_of, joined, load_groups, save_groups
from roll.types.rollout import LocalRow, Trajectory
from roll.types.texts import Turn

NUMBERS = st.floats(width=32, allow_infinity=False)
TEXTS = st.text(max_size=8) | st.just("\ud800 lost half")
METRICS = st.dictionaries(st.sampled_from(["correct", "reward_time_s"]), NUMBERS)


def floats(count: int) -> st.SearchStrategy[np.ndarray]:
    return st.lists(NUMBERS, min_size=count, max_size=count).map(lambda values: np.array(values, np.float32))


@st.composite
def rows(draw: st.DrawFn) -> Trajectory:
    count = draw(st.integers(0, 6))
    mask = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    versions = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    turns = st.builds(Turn, TEXTS, TEXTS, st.none() | TEXTS, NUMBERS, METRICS)
    return Trajectory(
        input_ids=np.arange(count, dtype=np.int32),
        response_mask=np.array(mask, np.bool_),
        log_probs=draw(floats(count)),
        policy_versions=np.where(mask, versions, -1).astype(np.int32),
        token_rewards=draw(st.none() | floats(count)),
        routes=draw(
            st.none() | st.integers(1, 2).map(lambda k: np.arange(count * 3 * k, dtype=np.int16).reshape(-1, 3, k))
        ),
        turn_rewards=draw(st.none() | st.integers(0, 3).flatmap(floats)),
        reward=draw(NUMBERS),
        finish_reason=draw(st.sampled_from(["stop", "length", "abort", "failed"])),
        index=draw(st.integers(0, 7)),
        turn=draw(st.integers(0, 3)),
        state_key=draw(st.integers(-(2**63), 2**63 - 1)),
        failure=draw(st.none() | TEXTS),
        metrics=draw(METRICS),
        extra=draw(st.just({}) | st.just({"why": [1, None, "x"], "verdict": {"score": 0.5}})),
        response_text=draw(TEXTS),
        turns=tuple(draw(st.lists(turns, max_size=2))),
    )


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype, [str(entry) for entry in value]
    if isinstance(value, Turn):
        return tuple(plain(getattr(value, field.name)) for field in fields(Turn))
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def facts(groups: list[RecordedGroup]) -> list[Any]:
    def of_row(row: Trajectory) -> dict[str, Any]:
        names = {field.name for kind in (Trajectory, LocalRow) for field in fields(kind)} - {"content"}
        return {name: plain(getattr(row, name)) for name in sorted(names)}

    return [
        (
            group.group_id,
            group.task_id,
            group.surplus,
            plain(group.greedy_reward),
            list(map(of_row, group.trajectories)),
        )
        for group in groups
    ]


@settings(max_examples=200)
@given(st.lists(st.lists(rows(), min_size=1, max_size=4), max_size=4))
def test_every_kind_of_row_comes_back_bit_for_bit(found: list[list[Trajectory]]) -> None:
    greedy = (None, 0.1 + 0.2, math.nan)
    groups = [
        RecordedGroup(7 * i, f"task {i}", tuple(group), ((3, True), (i, False)), greedy[i % 3])
        for i, group in enumerate(found)
    ]
    pieces, headers = encode(groups)
    assert facts(decode(joined(pieces), json.loads(json.dumps(headers)))) == facts(groups)


def row(num_tokens: int, version: int, **more: Any) -> Trajectory:
    return Trajectory(
        input_ids=np.arange(num_tokens, dtype=np.int32),
        response_mask=np.arange(num_tokens) >= 2,
        log_probs=np.full(num_tokens, -0.5, np.float32),
        policy_versions=np.where(np.arange(num_tokens) >= 2, version, -1).astype(np.int32),
        reward=0.1 + 0.2,
        finish_reason="stop",
        **more,
    )


def test_versions_are_stored_as_runs() -> None:
    pieces, _ = encode([RecordedGroup(0, "t", (row(4, 3), row(5, 3), row(2, 0), row(3, 9)))])
    arrays = joined(pieces)
    assert arrays["version_values"].tolist() == [-1, 3, -1, 3, -1, -1, 9]
    assert arrays["version_lengths"].tolist() == [2, 2, 2, 3, 2, 2, 1]


def test_files_are_tensors_and_one_line_of_json_for_each_row(tmp_path: Path) -> None:
    groups = [RecordedGroup(3, "a", (row(4, 1, index=0), row(9, 2, index=1))), RecordedGroup(5, "b", (row(2, 0),))]
    save_groups(tmp_path / "rollouts", groups)
    arrays, headers = files_of(tmp_path / "rollouts")
    assert {*(tmp_path / "rollouts").iterdir()} == {arrays, headers}
    lines = headers.read_text().splitlines()
    assert [(json.loads(line)["group"], json.loads(line)["reward"]) for line in lines] == [(3, 0.1 + 0.2)] * 2 + [
        (5, 0.1 + 0.2)
    ]
    assert facts(load_groups(tmp_path / "rollouts")) == facts(groups)
    assert load_groups(tmp_path / "nowhere") == []
