"""What there is of answers when a run ends on purpose: it is saved, and the next run goes on with it."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.event_loop import EventLoopThread
from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler, SchedulerSettings
from roll.types.group_codec import BEGUN, load_groups
from roll.types.rollout import (
    FinishReason,
    Generate,
    Generation,
    GenerationRequest,
    PartialRequest,
    SamplingParams,
    StoredRow,
    Task,
    Trajectory,
    TrajectoryGroup,
)
from tests.helpers.rollouts import here
from tests.unit.distributed.scheduler.test_saved_groups import Source

BOUNDS = RolloutBounds(2, 4, max_staleness=2)
PROMPT = np.array([1, 2], np.int32)


def generation(token_ids: Sequence[int], reason: FinishReason, version: int = 1) -> Generation:
    ids = np.array(token_ids, np.int32)
    return Generation(ids, -ids.astype(np.float32) / 4, np.full(len(ids), version, np.int32), reason)


@dataclass
class Engine:
    """Answers at once but for the groups that `hang`; of these it has `begun` when it is given up."""

    hang: Mapping[int, Mapping[int, Generation]] = field(default_factory=dict)
    asked: dict[int, GenerationRequest] = field(default_factory=dict)

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        self.asked[request.order] = request
        if request.order in self.hang:
            await asyncio.Event().wait()
        return [request.begun.get(index, generation([7, index], "stop")) for index in request.samples]

    async def give_up(self) -> list[PartialRequest]:
        return [
            PartialRequest(self.asked[number].request_id, self.asked[number].prompt_ids, answers)
            for number, answers in self.hang.items()
        ]


@dataclass
class Rollouter:
    """One request for two answers; the scores of some groups never come."""

    unscored: tuple[int, ...] = ()
    longest: int = 8

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        request = GenerationRequest(
            f"train-{group_id}", task.prompt_ids, SamplingParams(self.longest), num_samples=2, order=group_id
        )
        answers = await generate(request)
        if group_id in self.unscored:
            await asyncio.Event().wait()
        rows = [
            Trajectory.from_generation(task.prompt_ids, here(answer), 1.0, index=index, response_text="")
            for index, answer in enumerate(answers)
        ]
        return TrajectoryGroup(task, group_id, tuple(rows))


@pytest.fixture(scope="module")
def loop() -> Iterator[EventLoopThread]:
    thread = EventLoopThread("begun-answers-tests")
    yield thread
    thread.close()


STORED = generation([3, 4, 5], "stop")


def fetch(groups: Sequence[Sequence[Trajectory]]) -> list[list[Trajectory]]:
    def of(row: Trajectory) -> Trajectory:
        if row.is_here:
            return row
        return Trajectory.from_generation(
            PROMPT, STORED, row.reward, index=row.index, response_text="", extra=row.extra
        )

    return [[of(row) for row in rows] for rows in groups]


def make(
    loop: EventLoopThread, engine: Engine, source: Source, rollouter: Rollouter, bounds: RolloutBounds = BOUNDS
) -> RolloutScheduler:
    settings = SchedulerSettings(bounds)
    return RolloutScheduler(loop, rollouter, engine.generate, source, settings, fetch=fetch, give_up=engine.give_up)


def ended(
    loop: EventLoopThread,
    directory: Path,
    hang: Mapping[int, Mapping[int, Generation]],
    unscored: tuple[int, ...] = (),
    ends: bool = True,
) -> dict[str, Any]:
    """The state after one step, when all groups are finished that can be."""
    scheduler = make(loop, Engine(hang), Source(), Rollouter(unscored))
    scheduler.collect(0)
    scheduler.published(1)
    loop.run(_until_running(scheduler, len(hang) + len(unscored)))
    state = json.loads(json.dumps(scheduler.save(directory, ends=ends)))
    loop.run(scheduler._core.cancel())
    return state


async def _until_running(scheduler: RolloutScheduler, count: int) -> None:
    while scheduler.num_running > count:
        await asyncio.sleep(0)


def resumed(
    loop: EventLoopThread,
    directory: Path,
    state: dict[str, Any],
    bounds: RolloutBounds = BOUNDS,
    step: int = 1,
    **settings: Any,
) -> tuple[Engine, int, dict[int, TrajectoryGroup]]:
    """The engine of the run that goes on, how many tokens were there, and the groups of its first step."""
    engine, source = Engine(), Source()
    source.load_state_dict(state["data"])
    scheduler = make(loop, engine, source, Rollouter(**settings), bounds)
    num_tokens = scheduler.restore(directory, state["groups"], step)
    scheduler.published(step)
    return engine, num_tokens, {group.group_id: group for group in scheduler.collect(step).groups}


def begun_of(request: GenerationRequest) -> dict[int, tuple[list[int], str]]:
    return {index: (answer.token_ids.tolist(), answer.finish_reason) for index, answer in request.begun.items()}


def test_answers_that_were_under_way_go_on_with_the_tokens_that_they_had(loop: EventLoopThread, tmp_path: Path):
    hang = {1: {0: generation([5, 6], "moved"), 1: generation([], "moved")}, 4: {1: generation([9], "stop")}}
    state = ended(loop, tmp_path, hang)
    engine, num_tokens, groups = resumed(loop, tmp_path, state)
    assert {number: begun_of(request) for number, request in engine.asked.items() if request.begun} == {
        1: {0: ([5, 6], "moved")},
        4: {1: ([9], "stop")},
    }
    begun = engine.asked[1].begun[0]
    assert begun.log_probs.tolist() == [-1.25, -1.5] and begun.policy_versions.tolist() == [1, 1]
    finished = sum(row.facts.num_sampled for group in load_groups(tmp_path / "rollouts") for row in group.trajectories)
    assert num_tokens == finished + 3
    assert 1 in groups


def test_a_checkpoint_on_the_way_leaves_them_alone(loop: EventLoopThread, tmp_path: Path):
    ended(loop, tmp_path, {1: {0: generation([5, 6], "moved")}}, ends=False)
    assert load_groups(tmp_path / "rollouts") and not load_groups(tmp_path / "rollouts", BEGUN)


def test_whole_answers_whose_scores_are_missing_are_not_sampled_again(loop: EventLoopThread, tmp_path: Path):
    state = ended(loop, tmp_path, {}, unscored=(1,))
    engine, _, groups = resumed(loop, tmp_path, state)
    assert begun_of(engine.asked[1]) == {0: ([7, 0], "stop"), 1: ([7, 1], "stop")}
    assert [row.reward for row in groups[1].trajectories] == [1.0, 1.0]


def test_what_the_object_store_has_of_them_is_fetched(loop: EventLoopThread, tmp_path: Path):
    row = Trajectory.from_generation(PROMPT, STORED, 0.0, index=0, response_text="")
    stored = Generation(content=StoredRow("tokens", "texts", 0, row.facts), finish_reason="stop")
    state = ended(loop, tmp_path, {1: {0: stored, 1: generation([5], "moved")}})
    engine, _, _ = resumed(loop, tmp_path, state)
    assert begun_of(engine.asked[1]) == {0: ([3, 4, 5], "stop"), 1: ([5], "moved")}


def test_what_would_be_too_old_is_sampled_again(loop: EventLoopThread, tmp_path: Path):
    """Under the smaller bound, group 1 is due in step 2, and may have tokens of version 1 and later."""
    state = ended(loop, tmp_path, {1: {0: generation([5], "moved", 0), 1: generation([6], "moved", 1)}})
    engine, _, _ = resumed(loop, tmp_path, state, RolloutBounds(2, 2, max_staleness=1), step=2)
    assert begun_of(engine.asked[1]) == {1: ([6], "moved")}


def test_what_another_length_or_group_size_does_not_ask_for_is_left_out(loop: EventLoopThread, tmp_path: Path):
    hang: Mapping[int, Mapping[int, Generation]] = {
        1: {0: generation([5, 6, 7], "stop"), 1: generation([5, 6], "moved"), 2: generation([5], "stop")}
    }
    engine, _, _ = resumed(loop, tmp_path, ended(loop, tmp_path, hang), longest=2)
    assert begun_of(engine.asked[1]) == {1: ([5, 6], "moved")}


def test_what_only_a_shorter_limit_had_ended_goes_on_under_a_longer_one(loop: EventLoopThread, tmp_path: Path):
    hang: Mapping[int, Mapping[int, Generation]] = {
        1: {0: generation([5, 6], "length"), 1: generation([5, 6, 7], "length")}
    }
    engine, _, _ = resumed(loop, tmp_path, ended(loop, tmp_path, hang), longest=3)
    assert begun_of(engine.asked[1]) == {0: ([5, 6], "moved"), 1: ([5, 6, 7], "length")}


def test_a_prompt_that_is_another_one_now_is_answered_from_its_beginning(loop: EventLoopThread, tmp_path: Path):
    state = ended(loop, tmp_path, {1: {0: generation([5, 6], "moved")}})
    scheduler = make(loop, engine := Engine(), Longer(), Rollouter())
    scheduler.restore(tmp_path, state["groups"], 1)
    scheduler.published(1)
    scheduler.collect(1)
    assert begun_of(engine.asked[1]) == {}


def test_what_has_yet_to_go_on_when_the_run_ends_again_is_saved_again(loop: EventLoopThread, tmp_path: Path):
    hang = {number: {0: generation([5, number], "moved")} for number in (1, 4, 5)}
    state, source, engine = ended(loop, tmp_path / "first", hang), Source(), Engine({1: hang[1]})
    source.load_state_dict(state["data"])
    settings = SchedulerSettings(BOUNDS, max_running=1)
    scheduler = RolloutScheduler(
        loop, Rollouter(), engine.generate, source, settings, fetch=fetch, give_up=engine.give_up
    )
    scheduler.restore(tmp_path / "first", state["groups"], 1)
    scheduler.published(1)
    loop.run(_until_asked(engine, 1))
    scheduler.save(tmp_path / "second", ends=True)
    loop.run(scheduler._core.cancel())
    again = load_groups(tmp_path / "second" / "rollouts", BEGUN)
    assert {group.group_id: group.trajectories[0].input_ids.tolist()[-2:] for group in again} == {
        number: [5, number] for number in hang
    }


async def _until_asked(engine: Engine, number: int) -> None:
    while number not in engine.asked:
        await asyncio.sleep(0)


class Longer(Source):
    """Other prompts of the same names."""

    def next_tasks(self, count: int) -> list[Task]:
        return [Task(task.task_id, task.domain, np.array([1, 2, 3], np.int32)) for task in super().next_tasks(count)]
