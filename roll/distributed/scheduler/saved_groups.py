"""Answers of groups in flight that a run saves at its end, so that the next one continues with them."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from roll.distributed.scheduler.numbered_tasks import NumberedTasks
from roll.distributed.scheduler.rollout_core import CoreState, SavedGroup
from roll.types.group_codec import BEGUN, FINISHED, RecordedGroup, load_groups, save_groups
from roll.types.rollout import (
    Generate,
    Generation,
    GenerationRequest,
    PartialRequest,
    Task,
    Trajectory,
    TrajectoryGroup,
)

GiveUp = Callable[[], Awaitable[Sequence[PartialRequest]]]
"""Ends all requests, and returns what there is of them."""

BegunGroups = Mapping[int, Sequence[PartialRequest]]  # by number

_REQUEST = "request"


class PartialAnswers:
    """Knows which requests a group has made. Belongs to one event loop."""

    def __init__(self, generate: Generate, give_up: GiveUp | None):
        self._generate, self._give_up = generate, give_up
        self._answered: dict[int, dict[str, PartialRequest | None]] = {}  # by number and id; None while it is under way
        self._saved: dict[int, dict[str, PartialRequest]] = {}

    def restore(self, groups: BegunGroups) -> None:
        """Groups of these numbers go on with what there is, where they ask for the same."""
        self._saved = {number: {request.request_id: request for request in some} for number, some in groups.items()}

    @contextmanager
    def group(self, number: int) -> Iterator[Generate]:
        """A way to the engines for this group."""
        answered = self._answered[number] = {}
        saved = self._saved.setdefault(number, {})

        @wraps(self._generate)  # a rollouter looks at what it takes
        async def generate(request: GenerationRequest, *arguments: Any) -> Sequence[Generation]:
            name = request.request_id
            answered[name] = None
            begun = saved.pop(name, None)
            if begun is not None and np.array_equal(begun.prompt_ids, request.prompt_ids):
                request = replace(request, begun=_fitting(begun, request))
            answers = await self._generate(request, *arguments)
            answered[name] = PartialRequest(name, request.prompt_ids, dict(zip(request.samples, answers, strict=False)))
            return answers

        try:
            yield generate
        finally:
            del self._answered[number], self._saved[number]

    async def give_up(self) -> dict[int, list[PartialRequest]]:
        """Ends all requests; what there is of the groups that are not finished, or have yet to go on."""
        if self._give_up is None:
            return {}
        open_requests = {request.request_id: request for request in await self._give_up()}
        groups = {number: list(saved.values()) for number, saved in self._saved.items()}
        for number, begun_requests in self._answered.items():
            groups[number] += [
                request for name, whole in begun_requests.items() if (request := whole or open_requests.get(name))
            ]
        return {number: requests for number, requests in groups.items() if requests}


def rows_of(requests: Iterable[PartialRequest]) -> tuple[Trajectory, ...]:
    """The answers that have a token, as a group's rows without rewards; `requests_of` takes them apart again."""
    return tuple(
        _row(request, number, answer)
        for request in requests
        for number, answer in request.answers.items()
        if answer.num_tokens
    )


def requests_of(rows: Iterable[Trajectory]) -> list[PartialRequest]:
    by_name: dict[str, tuple[np.ndarray, dict[int, Generation]]] = {}
    for row in rows:
        mask = row.response_mask
        ids, log_probs, versions = (column[mask] for column in (row.input_ids, row.log_probs, row.policy_versions))
        prompt_ids = row.input_ids[: int(mask.argmax())]
        _, answers = by_name.setdefault(row.extra[_REQUEST], (prompt_ids, {}))
        answers[row.index] = Generation(ids, log_probs, versions, row.finish_reason)
    return [PartialRequest(name, prompt_ids, answers) for name, (prompt_ids, answers) in by_name.items()]


def young_enough(requests: Sequence[PartialRequest], version: int) -> list[PartialRequest]:
    """The requests without responses that have a token of a version older than `version`."""
    return [
        replace(request, answers={n: a for n, a in request.answers.items() if a.oldest_version >= version})
        for request in requests
    ]


def _row(request: PartialRequest, number: int, answer: Generation) -> Trajectory:
    extra, missing = {_REQUEST: request.request_id}, float("nan")
    return Trajectory.from_generation(request.prompt_ids, answer, missing, index=number, response_text="", extra=extra)


def _fitting(begun: PartialRequest, request: GenerationRequest) -> dict[int, Generation]:
    """Return the answers that the request would ask for as well: the group size or the length limit may have changed.
    What only an earlier, shorter limit had ended goes on."""
    longest = request.sampling.max_new_tokens
    return {
        number: replace(answer, finish_reason="moved") if _was_cut(answer, longest) else answer
        for number, answer in begun.answers.items()
        if number in request.samples and answer.num_tokens <= longest
    }


def _was_cut(answer: Generation, longest: int) -> bool:
    return answer.finish_reason == "length" and answer.num_tokens < longest


# The state of a core in a checkpoint: numbers as JSON values, and the groups in files beside them, finished ones and,
# where a run ended on purpose, what there was of the others.

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
    """Yield the recorded groups whose numbers still have the same tasks."""
    for recorded in load_groups(directory / _DIRECTORY, name):
        task = tasks.draw(recorded.group_id)
        if task.task_id == recorded.task_id:
            yield task, recorded
        else:
            logger.warning("group %d of task %s is sampled again", recorded.group_id, recorded.task_id)


def _recorded(group: TrajectoryGroup) -> RecordedGroup:
    return RecordedGroup(group.group_id, group.task.task_id, group.trajectories, group.surplus, group.greedy_reward)


def _group(task: Task, recorded: RecordedGroup) -> TrajectoryGroup:
    return TrajectoryGroup(task, recorded.group_id, recorded.trajectories, recorded.surplus, recorded.greedy_reward)
