"""What an explorer hands over, and how one that starts again goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from roll.distributed.scheduler.rollout_core import StepGroups
from roll.features.experience.directory import DirectoryBuffer
from roll.features.experience.explorer import Explorer, Progress, StreamingRollouter
from roll.types.rollout import Generate, Generation, GenerationRequest, Task, TrajectoryGroup
from tests.unit.features.experience.made import experience, told


def explorer_at(directory: Path, is_in_order: bool = True) -> Explorer:
    return Explorer(DirectoryBuffer(directory), 2, is_in_order)


def test_a_step_is_handed_over_with_what_the_filter_dropped(tmp_path: Path) -> None:
    groups = [experience(number).group for number in range(3)]
    explorer_at(tmp_path).write_step(0, StepGroups([groups[0], groups[2]], [groups[1]]))
    entries = explorer_at(tmp_path).buffer.entries()
    assert [(entry.step, entry.number, entry.is_kept) for entry in entries] == [
        (0, 0, True),
        (0, 1, False),
        (0, 2, True),
    ]
    assert Progress.of(explorer_at(tmp_path).buffer) == Progress(1, 3, ())


def test_an_explorer_that_starts_again_samples_what_no_step_took(tmp_path: Path) -> None:
    assert Progress.of(explorer_at(tmp_path).buffer) == Progress(0, 0, ())
    explorer_at(tmp_path).write_step(0, StepGroups([experience(0).group, experience(3).group], []))
    explorer_at(tmp_path).write_step(1, StepGroups([experience(1).group, experience(5).group], []))
    progress = Progress.of(explorer_at(tmp_path).buffer)
    assert progress == Progress(2, 6, (2, 4))
    assert progress.groups() == {"place": 0, "next": 6, "active": [[2, 2], [4, 2]]}


def test_a_group_whose_step_is_known_is_there_as_soon_as_it_is_sampled(tmp_path: Path) -> None:
    class Loop:
        async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
            return experience(group_id).group

    async def generate(request: GenerationRequest) -> list[Generation]:
        return []

    explorer = explorer_at(tmp_path)
    task = Task("row 5", "math", np.array([1], np.int32))
    group = asyncio.run(StreamingRollouter(Loop(), explorer).run_group(task, 5, 2, generate))
    assert [(entry.step, entry.number) for entry in explorer.buffer.entries()] == [(2, 5)]
    assert told(explorer.buffer.read(explorer.buffer.entries())[0]) == told(experience(5, step=2))
    explorer.write_step(2, StepGroups([group], []))
    assert len(explorer.buffer.entries()) == 1


def test_a_step_that_was_written_but_not_finished_is_over_where_its_numbers_hang_on_time(tmp_path: Path) -> None:
    explorer_at(tmp_path).buffer.write([experience(0), experience(3)])
    assert Progress.of(explorer_at(tmp_path).buffer).steps_done == 0
    assert Progress.of(explorer_at(tmp_path, is_in_order=False).buffer) == Progress(1, 4, (1, 2))
