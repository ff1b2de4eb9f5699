"""The state of a core in a checkpoint: numbers as JSON values, and the groups in files beside them, finished ones and,
where a run ended on purpose, what there was of the others."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from roll.distributed.scheduler.begun_answers import BegunGroups, requests_of
from roll.distributed.scheduler.numbered_tasks import NumberedTasks
from roll.distributed.scheduler.rollout_core import CoreState, SavedGroup
from roll.types.group_codec import BEGUN, FINISHED, RecordedGroup, load_groups, save_groups
from roll.types.rollout import Task, TrajectoryGroup

logger = logging.getLogger(__name__)

_DIRECTORY = "rollouts"


def write_state(
    directory: Path, state: CoreState, groups: Sequence[TrajectoryGroup], begun: Sequence[TrajectoryGroup] = ()
) -> dict[str, Any]:
    """`groups`: all the results of the state, with their tokens; `begun`: what there is of others (`rows_of`)."""
    for name, some in ((FINISHED, groups), (BEGUN, begun)):
        if some:
            save_groups(directory / _DIRECTORY, [_recorded(group) for group in some], name)
    return {
        "next": state.next,
        "active": [[group.number, group.admitted_at] for group in state.active],
        "dropped": [group.number for group in state.active if not group.is_kept],
        "deferred": list(state.deferred),
        "replaced": [number for number, _ in state.replaced],
    }


def read_state(directory: Path, groups: Mapping[str, Any], tasks: NumberedTasks) -> tuple[CoreState, BegunGroups]:
    """`tasks` stand at number `groups["place"]`, and go on to where the run was. A group that is not saved, or whose
    task is another one now, is played again."""
    active = [(int(number), int(version)) for number, version in groups["active"]]
    deferred, replaced = groups.get("deferred", ()), groups.get("replaced", ())
    numbers = {number for number, _ in active} | {*deferred, *replaced}
    tasks.restore(int(groups["place"]), numbers, int(groups["next"]))
    results = {recorded.group_id: _group(task, recorded) for task, recorded in _known(directory, FINISHED, tasks)}
    begun = {recorded.group_id: requests_of(recorded.trajectories) for _, recorded in _known(directory, BEGUN, tasks)}
    state = CoreState(
        int(groups["next"]),
        tuple(
            SavedGroup(number, version, results.get(number), number not in groups.get("dropped", ()))
            for number, version in active
        ),
        tuple(deferred),
        tuple((number, results[number]) for number in replaced if number in results),
    )
    return state, begun


def _known(directory: Path, name: str, tasks: NumberedTasks) -> Iterator[tuple[Task, RecordedGroup]]:
    """Those of the tasks that their numbers have now."""
    for recorded in load_groups(directory / _DIRECTORY, name):
        task = tasks.draw(recorded.group_id)
        if task.task_id == recorded.task_id:
            yield task, recorded
        else:
            logger.warning("group %d of task %s is sampled again", recorded.group_id, recorded.task_id)


def _recorded(group: TrajectoryGroup) -> RecordedGroup:
    return RecordedGroup(group.group_id, group.task.task_id, group.trajectories, group.surplus, group.greedy_reward)


def _group(task: Task, recorded: RecordedGroup) -> TrajectoryGroup:
    rows = recorded.trajectories
    if task.media:
        rows = tuple(replace(row, media=task.media) for row in rows)
    return TrajectoryGroup(task, recorded.group_id, rows, recorded.surplus, recorded.greedy_reward)
