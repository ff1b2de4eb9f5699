"""A buffer in the place of a scheduler: the step's groups, and what of them is in a checkpoint."""

from __future__ import annotations

from pathlib import Path

from roll.configs.sections.experience import ExperienceConfig
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.features.experience.directory import DirectoryBuffer
from roll.features.experience.reader import ExperienceReader, ReadGroups, Reading
from tests.unit.features.experience.made import experience


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
