"""The state of the groups between data and step in a checkpoint: numbers as JSON values, and finished groups in a file
beside them."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roll.distributed.scheduler.numbered_tasks import NumberedTasks
from roll.distributed.scheduler.rollout_core import CoreState, SavedGroup
from roll.types.group_codec import RecordedGroup, load_groups, save_groups
from roll.types.rollout import TrajectoryGroup

logger = logging.getLogger(__name__)

_DIRECTORY = "rollouts"


def write_state(directory: Path, state: CoreState, groups: Sequence[TrajectoryGroup]) -> dict[str, Any]:
    """`groups`: all the results of the state, with their tokens."""
    if groups:
        save_groups(directory / _DIRECTORY, [_recorded(group) for group in groups])
    return {
        "next": state.next,
        "active": [[group.number, group.admitted_at] for group in state.active],
        "dropped": [group.number for group in state.active if not group.is_kept],
        "deferred": list(state.deferred),
        "replaced": [number for number, _ in state.replaced],
    }


def read_state(directory: Path, groups: Mapping[str, Any], tasks: NumberedTasks) -> CoreState:
    """`tasks` stand at number `groups["place"]`, and go on to where the run was. A group that is not saved, or whose
    task is another one now, is played again."""
    active = [(int(number), int(version)) for number, version in groups["active"]]
    deferred, replaced = groups.get("deferred", ()), groups.get("replaced", ())
    numbers = {number for number, _ in active} | {*deferred, *replaced}
    tasks.restore(int(groups["place"]), numbers, int(groups["next"]))
    results: dict[int, TrajectoryGroup] = {}
    for recorded in load_groups(directory / _DIRECTORY):
        task = tasks.draw(recorded.group_id)
        if task.task_id == recorded.task_id:
            results[recorded.group_id] = TrajectoryGroup(
                task, recorded.group_id, recorded.trajectories, recorded.surplus, recorded.greedy_reward
            )
        else:
            logger.warning("group %d of task %s is sampled again", recorded.group_id, recorded.task_id)
    return CoreState(
        int(groups["next"]),
        tuple(
            SavedGroup(number, version, results.get(number), number not in groups.get("dropped", ()))
            for number, version in active
        ),
        tuple(deferred),
        tuple((number, results[number]) for number in replaced if number in results),
    )


def _recorded(group: TrajectoryGroup) -> RecordedGroup:
    return RecordedGroup(group.group_id, group.task.task_id, group.trajectories, group.surplus, group.greedy_reward)
