"""Recorded rollouts come back as they were, and only to the tasks that they are of."""

import asyncio
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.errors import ConfigError
from roll.rl.rollouters import RecordedRollouter, RolloutDump
from roll.types.group_codec import RecordedGroup, read_groups, write_groups
from roll.types.rollout import LocalRow, Task, Trajectory, TrajectoryGroup
from roll.types.texts import ParsedMessage, Turn
from tests.helpers.cases import cases
from tests.helpers.configs import config


def attempt(index: int, reward: float, num_tokens: int = 5, **more: Any) -> Trajectory:
    random = np.random.default_rng(index)
    mask = np.arange(num_tokens) >= 2
    return Trajectory(
        input_ids=random.integers(0, 99, num_tokens, dtype=np.int32),
        response_mask=mask,
        log_probs=np.where(mask, -random.random(num_tokens), 0).astype(np.float32),
        policy_versions=np.where(mask, 3, -1).astype(np.int32),
        reward=reward,
        finish_reason="stop",
        index=index,
        metrics={"correct": 1.0, "reward_time_s": 0.25},
        response_text='said "é" \ud800',
        **more,
    )


SAID = (ParsedMessage("user", "you see a lake"), ParsedMessage("assistant", "go", "far", (("walk", "{}"),)))
TURN = Turn("you see a lake", "go", None, 0.5, {"valid": 0.0}, said=SAID)
ROWS = (
    attempt(0, 0.1 + 0.2, extra={"why": [1, None, "x"]}),
    attempt(1, float("nan"), failure="the reward failed", turns=(TURN,)),
    attempt(2, -1e-40, num_tokens=7, turn_rewards=np.array([0.5, 1 / 3], np.float32), turn=1, state_key=7),
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def assert_same_rows(found: tuple[Any, ...], expected: tuple[Trajectory, ...]) -> None:
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        names = [f.name for f in (*fields(Trajectory), *fields(LocalRow)) if f.name != "content"]
        differing = [name for name in names if not same(getattr(row, name), getattr(wanted, name))]
        assert differing == []


def test_groups_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "step.npz"
    write_groups(path, [RecordedGroup(7, "a", ROWS[:2]), RecordedGroup(9, "b", ROWS[2:])])
    first, second = read_groups(path)
    assert (first.group_id, first.task_id, second.group_id, second.task_id) == (7, "a", 9, "b")
    assert_same_rows(first.trajectories, ROWS[:2])
    assert_same_rows(second.trajectories, ROWS[2:])
    assert [file.name for file in path.parent.iterdir()] == ["step.npz"]


def task(name: str) -> Task:
    return Task(name, "math", np.array([1, 2], np.int32))


def recorded(directory: Path, **changes: Any) -> RecordedRollouter:
    mock = {"enable": True, "mode": "mock", "dump_dir": str(directory)}
    return RecordedRollouter(config({"num_return_sequences_in_group": 3, "rollout_mock": mock, **changes}))


def played(rollouter: RecordedRollouter, group_id: int, name: str) -> TrajectoryGroup:
    async def generate(request: Any, answered: Any = None) -> Any:
        raise AssertionError("nothing is sampled")

    return asyncio.run(rollouter.run_group(task(name), group_id, 0, generate))


@pytest.fixture
def dumped(tmp_path: Path) -> Path:
    """Steps 1 and 2 of two groups each, of tasks row-0 to row-3."""
    dump = RolloutDump(tmp_path)
    for step in (1, 2):
        numbers = (2 * step - 2, 2 * step - 1)
        dump.write(step, [TrajectoryGroup(task(f"row-{n}"), n, ROWS) for n in numbers])
    return tmp_path


def test_each_task_gets_its_recorded_group_whatever_comes_first(dumped: Path) -> None:
    rollouter = recorded(dumped)
    for number in (3, 0, 2, 1):
        group = played(rollouter, number, f"row-{number}")
        assert (group.group_id, group.task.task_id) == (number, f"row-{number}")
        assert_same_rows(group.trajectories, ROWS)


@cases("changes, name, said")
def test_records_of_another_run_are_refused(dumped: Path, changes: dict[str, Any], name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        played(recorded(dumped, **changes), 0, name)


def test_a_folder_without_records_and_a_broken_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no rollouts"):
        recorded(tmp_path)
    for content in (b"", b"no archive"):
        (tmp_path / "step_000001.npz").write_bytes(content)
        with pytest.raises(ConfigError, match=r"step_000001.npz cannot be read: .*Dump its step again"):
            recorded(tmp_path)
