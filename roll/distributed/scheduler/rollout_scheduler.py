"""The rollout side of a run as the step sees it: groups for every step, from an event loop beside the driver."""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.event_loop import EventLoopThread
from roll.distributed.scheduler.numbered_tasks import NumberedTasks, TaskSource
from roll.distributed.scheduler.rollout_core import CoreState, Keep, RolloutCore, SavedGroup, StepGroups
from roll.errors import RewardError
from roll.types.failures import causes_of
from roll.types.group_codec import RecordedGroup, load_groups, save_groups
from roll.types.rollout import Generate, Rollouter, Task, Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)

Fetch = Callable[[Sequence[Sequence[Trajectory]]], Sequence[Sequence[Trajectory]]]
"""The rows of groups with their tokens and texts, wherever these are."""

Cut = Callable[[], Awaitable[Sequence[tuple[int, bool]]]]
"""The answers of requests that were cancelled since the last time, as in `GroupBacklog.cut`."""


@dataclass(frozen=True)
class SchedulerSettings:
    """`bounds` say how many groups are under way; a step in which more than `max_failed_fraction` of the attempts
    failed stops the run; `max_replacements` groups per step may replace groups that the filter drops. `num_steps`: of
    the whole run, None without an end. `max_running`: groups that may run at once."""

    bounds: RolloutBounds
    max_failed_fraction: float = 0.1
    max_replacements: int = 0
    num_steps: int | None = None
    max_running: int | None = None


class RolloutScheduler:
    """The core on its event loop. Group g is task g of the data, whatever finishes first, and samples under seeds that
    hang on g. Not thread safe: one driver thread calls; the groups run on the loop."""

    state_key = "groups"

    def __init__(
        self,
        loop: EventLoopThread,
        rollouter: Rollouter,
        generate: Generate,
        source: TaskSource,
        settings: SchedulerSettings,
        keep: Keep | None = None,
        fetch: Fetch | None = None,
        cut: Cut | None = None,
        metrics: Callable[[], dict[str, float]] = dict,
    ):
        """`fetch` is needed where rows may be stored apart from what is known of them. `cut` returns when the engines
        have nothing more of requests that were cancelled. `metrics`: of the engines."""
        self._fetch, self._cut = fetch, cut
        self._loop, self._settings = loop, settings
        self._rollouter = rollouter
        self._generate = generate
        self._tasks = NumberedTasks(source)
        self._core = RolloutCore(
            self._play, settings.bounds, keep, settings.max_replacements, settings.num_steps, settings.max_running
        )
        self._keep = keep
        self._metrics = metrics

    @property
    def filters(self) -> bool:
        return self._keep is not None

    @property
    def num_running(self) -> int:
        return self._core.num_running

    def save(self, directory: Path) -> dict[str, Any]:
        """The state, as JSON values: `data` is where the source stood at number `groups.place`. Finished groups that no
        step took are written below the directory; the others are played again, under their numbers."""
        core, place, data = self._loop.run(self._state())
        finished = [group.result for group in core.active if group.result is not None]
        groups = self._fetched([*finished, *(group for _, group in core.replaced)])
        return {"data": data, "groups": {"place": place, **write_state(directory, core, groups)}}

    def _fetched(self, groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
        if not groups or self._fetch is None:
            return groups
        rows = self._fetch([group.trajectories for group in groups])
        return [replace(group, trajectories=tuple(attempts)) for group, attempts in zip(groups, rows, strict=True)]

    def restore(self, directory: Path, groups: Mapping[str, Any] | None, step: int) -> int:
        """Goes on where `step` steps are done; the source stands where `save` said. `groups` is None in checkpoints
        that do not know them: then every step has taken its own. Called before the first collect. Returns how many
        sampled tokens there are with which it goes on."""
        if not groups:
            number = step * self._settings.bounds.num_groups
            groups = {"place": number, "next": number, "active": []}
        return self._loop.run(self._restore(read_state(directory, groups, self._tasks), step))

    def collect(self, step: int) -> StepGroups:
        """The groups of this step, ordered by number. Raises RewardError when too many attempts failed."""
        groups = self._loop.run(self._collect(step))
        _check_failures(groups.sampled, step, self._settings.max_failed_fraction)
        return groups

    def rescore(self, groups: StepGroups, completed: Sequence[TrajectoryGroup], step: int) -> StepGroups:
        """The groups of a step once all their rewards are there: what was kept while some were missing is looked at
        again, and so is how many attempts failed. `completed`: `groups.sampled`, in its order."""
        _check_failures(completed, step, self._settings.max_failed_fraction)
        passed, dropped = list(completed[: len(groups.groups)]), list(completed[len(groups.groups) :])
        if self._keep is None:
            return replace(groups, groups=passed, dropped=dropped)
        verdicts = [self._keep(group) for group in passed]
        late = [group for group, keeps in zip(passed, verdicts, strict=True) if not keeps]
        passed = [group for group, keeps in zip(passed, verdicts, strict=True) if keeps]
        return replace(groups, groups=passed, dropped=dropped + late)

    def metrics(self) -> dict[str, float]:
        return self._metrics()

    def saved(self, steps_done: int) -> None:
        """Releases nothing: the checkpoint itself holds what no step took."""

    def published(self, version: int) -> None:
        self._loop.run(self._published(version))

    def _play(self, number: int) -> Coroutine[Any, Any, TrajectoryGroup]:
        return self._played(number, self._tasks.draw(number))

    async def _played(self, number: int, task: Task) -> TrajectoryGroup:
        return await self._rollouter.run_group(task, number, number // self._settings.bounds.num_groups, self._generate)

    async def _state(self) -> tuple[CoreState, int, dict[str, Any]]:
        core = self._core.state()
        return core, *self._tasks.place(core.oldest)

    async def _restore(self, state: CoreState, step: int) -> int:
        self._core.restore(state, step)
        finished = [group.result for group in self._core.state().active if group.result is not None]
        return sum(row.facts.num_sampled for group in finished for row in group.trajectories)

    async def _published(self, version: int) -> None:
        self._core.published(version)

    async def _collect(self, step: int) -> StepGroups:
        try:
            groups = await self._core.collect(step)
        except BaseException:
            await self._core.cancel()
            raise
        self._tasks.keep_only(self._core.state().numbers)
        if groups.backlog is None or not groups.backlog.cancelled or self._cut is None:
            return groups
        cut = tuple(await self._cut())
        return (
            groups if self._settings.bounds.is_in_order else replace(groups, backlog=replace(groups.backlog, cut=cut))
        )


def _check_failures(groups: Sequence[TrajectoryGroup], step: int, max_failed_fraction: float) -> None:
    """Raises RewardError when more of the attempts failed, with the most frequent causes."""
    causes = causes_of(groups)
    failed, count = sum(cause.count for cause in causes), sum(len(group.attempts) for group in groups)
    if failed <= max_failed_fraction * count:
        return
    first = "\n".join(map(str, causes[:3]))
    raise RewardError(
        f"step {step}: {failed} of {count} attempts failed, more than max_failed_fraction ({max_failed_fraction:g}) "
        f"allows. The most frequent causes:\n{first}"
    )


# The state of the core in a checkpoint: numbers as JSON values, and finished groups in a file beside them.

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
