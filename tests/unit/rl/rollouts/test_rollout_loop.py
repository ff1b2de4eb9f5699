"""A rollout loop of the user's own: what is refused, and that groups are those it makes."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.errors import ConfigError, TaskError
from roll.rl.rollout_loop import UserRollouter, load_loop, loop_problems
from roll.types.rollout import Task, Trajectory, TrajectoryGroup
from tests.helpers.cases import cases
from tests.helpers.configs import config
from tests.helpers.pages import snippets

CLASSES = """
class NoMethod:
    def __init__(self, inner): ...


class Plain:
    def __init__(self, inner): ...
    def run_group(self, task, group_id, step, generate): ...


class NoInner:
    async def run_group(self, task, group_id, step, generate): ...


class Short:
    def __init__(self, inner): ...
    async def run_group(self, task): ...


def function(inner): ...
"""


@pytest.fixture
def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module with what the page shows, and with what is no loop."""
    (page,) = snippets("adding_a_rollout_loop.md", "python")
    (tmp_path / "loops_of_a_test.py").write_text(f"{page}\n{CLASSES}")
    monkeypatch.syspath_prepend(tmp_path)
    yield "loops_of_a_test"
    sys.modules.pop("loops_of_a_test", None)


def group(task: Task, group_id: int, reward: float) -> TrajectoryGroup:
    ids = task.prompt_ids
    row = Trajectory(
        input_ids=ids,
        response_mask=np.ones(len(ids), bool),
        log_probs=np.zeros(len(ids), np.float32),
        policy_versions=np.zeros(len(ids), np.int32),
        reward=reward,
        finish_reason="stop",
    )
    return TrajectoryGroup(task, group_id, (row,))


def said(changes: dict[str, Any]) -> list[str]:
    return [problem.text for problem in loop_problems(config(changes))]


class Inner:
    """Rewards prompts that begin with 9."""

    async def run_group(self, task: Task, group_id: int, step: int, generate: Any) -> TrajectoryGroup:
        return group(task, group_id, float(task.prompt_ids[0] == 9))


def test_the_loop_of_the_page_asks_again_where_all_answers_were_wrong(loops: str) -> None:
    loop = load_loop(f"{loops}:Hinted")
    assert loop is not None
    made = loop(Inner())
    hint = {"hint_ids": np.array([9, 1], np.int32)}
    for first, payload, rewards in ((1, hint, [1.0]), (1, {}, [0.0]), (9, hint, [1.0])):
        task = Task("row-0", "math", np.array([first], np.int32), payload=payload)
        found = asyncio.run(made.run_group(task, 4, 0, None))  # type: ignore[arg-type]
        assert (found.group_id, found.rewards.tolist()) == (4, rewards)


@cases("name, said")
def test_what_is_no_loop_is_refused(loops: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"user_defined_rollout_loop_cls: .*{said}"):
        load_loop(f"{loops}:{name}")


class Misbehaving:
    """Of a group of one attempt."""

    def __init__(self, how: str):
        self.how = how

    async def run_group(self, task: Task, group_id: int, step: int, generate: Any) -> Any:
        if self.how == "raises":
            raise KeyError("hint")
        made = group(task, group_id + (self.how == "another group"), 1.0)
        return made.trajectories if self.how == "rows" else made


@cases("how, group_size, said")
def test_what_a_loop_does_wrong_is_told_with_its_name(how: str, group_size: int, said: str | None) -> None:
    rollouter, task = UserRollouter(Misbehaving(how), group_size), Task("row-0", "math", np.array([1], np.int32))
    if said is None:
        assert asyncio.run(rollouter.run_group(task, 4, 0, None)).group_id == 4  # type: ignore[arg-type]
        return
    with pytest.raises(TaskError, match=said):
        asyncio.run(rollouter.run_group(task, 4, 0, None))  # type: ignore[arg-type]
