"""What an older tree wrote is read as it was. The files of `written_before` were made by `write_all` at commit b9843b3,
where stored answers and attempts were classes of their own."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.distributed.scheduler.numbered_tasks import NumberedTasks
from roll.distributed.scheduler.rollout_core import CoreState, SavedGroup
from roll.distributed.scheduler.saved_groups import read_state, rows_of, write_state
from roll.rl.experience.buffer import Buffer
from roll.rl.experience.directory import DirectoryBuffer
from roll.rl.experience.rows import FORMS, Experience
from roll.rl.experience.sql import SqlBuffer, SqliteDatabase
from roll.types.group_codec import RecordedGroup, read_groups, write_groups
from roll.types.rollout import Generation, PartialRequest, Task, TrajectoryGroup
from tests.unit.rl.experience.made import experience, told

BEFORE = Path(__file__).parent / "written_before"
BUFFERS: Mapping[str, Callable[[Path], Buffer]] = {
    "queue": lambda directory: DirectoryBuffer(directory / "queue", FORMS["npz"]),
    "jsonl": lambda directory: DirectoryBuffer(directory / "jsonl", FORMS["jsonl"]),
    "parquet": lambda directory: DirectoryBuffer(directory / "parquet", FORMS["parquet"]),
    "sql": lambda directory: SqlBuffer(SqliteDatabase(directory / "experience.db"), FORMS["npz"]),
}
MADE = [experience(1, step=0, version=0), experience(2, step=0, version=3, is_kept=False)]


class Source:
    """The tasks of groups 0, 1, ..., as `experience` has them."""

    def next_tasks(self, count: int) -> list[Task]:
        self.position += count
        return [experience(number).group.task for number in range(self.position - count, self.position)]

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = state["position"]


def begun() -> list[PartialRequest]:
    ids, versions = np.array([4, 5, 6], np.int32), np.array([2, 2, 3], np.int32)
    answers = {1: Generation(ids, (-ids / 3).astype(np.float32), versions, "moved")}
    return [PartialRequest("train-3", np.array([1, 2], np.int32), answers)]


def recorded(groups: Sequence[TrajectoryGroup]) -> list[RecordedGroup]:
    return [RecordedGroup(g.group_id, g.task.task_id, g.trajectories, g.surplus, g.greedy_reward) for g in groups]  # type: ignore[arg-type]


def write_all(directory: Path) -> None:
    groups = [one.group for one in MADE]
    for make in BUFFERS.values():
        buffer = make(directory)
        buffer.write(MADE)
        buffer.finish(0, {one.number for one in MADE})
        buffer.close()
    write_groups(directory / "step_000001.npz", recorded(groups))
    active = [SavedGroup(one.number, 0, one.group, one.is_kept) for one in MADE]
    core = CoreState(4, (*active, SavedGroup(3, 2)))
    part = TrajectoryGroup(experience(3).group.task, 3, rows_of(begun()))
    state = write_state(directory / "checkpoint", core, groups, [part])
    (directory / "checkpoint" / "groups.json").write_text(json.dumps({"place": 0, **state}))


@pytest.fixture(params=["before", "now"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "before":
        return BEFORE
    write_all(tmp_path / "now")
    return tmp_path / "now"


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_buffer_gives_what_was_written(kind: str, directory: Path, tmp_path: Path) -> None:
    buffer = BUFFERS[kind](shutil.copytree(directory, tmp_path / "copy"))  # a buffer writes where it reads
    buffer.recover()
    found = buffer.read(buffer.entries())
    assert [told(one) for one in found] == [told(one) for one in MADE]
    assert [row.facts for one in found for row in one.group.trajectories] == [
        row.facts for one in MADE for row in one.group.trajectories
    ]
    assert buffer.finished() == [frozenset({1, 2})]
    buffer.close()


def test_a_dump_of_rollouts_gives_what_was_written(directory: Path) -> None:
    found = read_groups(directory / "step_000001.npz")
    assert [of_rows(one, group) for one, group in zip(MADE, found, strict=True)] == [told(one) for one in MADE]


def of_rows(one: Experience, group: RecordedGroup) -> object:
    return told(replace(one, group=replace(one.group, trajectories=group.trajectories, surplus=group.surplus)))


def test_a_checkpoint_gives_finished_groups_and_what_was_begun(directory: Path) -> None:
    state = json.loads((directory / "checkpoint" / "groups.json").read_text())
    core, parts = read_state(directory / "checkpoint", state, NumberedTasks(Source()))
    found = [group.result for group in core.active if group.result is not None]
    assert [told(replace(one, group=group)) for one, group in zip(MADE, found, strict=True)] == [
        told(one) for one in MADE
    ]
    assert [(group.number, group.is_kept) for group in core.active] == [(1, True), (2, False), (3, True)]
    ((request,), (wanted,)) = parts[3], begun()
    answer, was = request.answers[1], wanted.answers[1]
    assert (request.request_id, request.prompt_ids.tolist(), answer.finish_reason) == ("train-3", [1, 2], "moved")
    for name in ("token_ids", "log_probs", "policy_versions"):
        assert getattr(answer, name).tolist() == getattr(was, name).tolist()
