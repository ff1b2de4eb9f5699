"""Engines that share a part of their devices: those that stay go on, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.configs.plan.batch_plan import RolloutBounds
from roll.distributed.scheduler.event_loop import run_virtually
from roll.utils.worker_usage import TraceOptions
from tests.unit.distributed.executor.overlap import Play, Shape, length_of

STEPS = 4


@pytest.fixture(autouse=True)
def without_threads() -> Any:
    """A virtual clock knows nothing of what other threads are at."""

    async def here(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "to_thread", here)
        yield


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    num_engines, size = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    devices = draw(st.permutations(range(num_engines * size)))
    engines = [frozenset(devices[first : first + size]) for first in range(0, len(devices), size)]
    some = st.frozensets(st.integers(0, num_engines * size), min_size=1)
    num_groups, interval = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    staleness = draw(st.integers(interval - 1, interval + 1))
    ahead = draw(st.integers(0, (staleness + 1 - interval) * num_groups))
    group_size = draw(st.integers(1, 4))
    return Shape(
        engines=engines,
        trainer=draw(some),
        scorers=draw(st.lists(some, max_size=2)),
        bounds=RolloutBounds(num_groups, ahead, interval, staleness),
        group_size=group_size,
        seed=draw(st.integers(0, 999)),
        enough=draw(st.none() | st.integers(1, group_size)),
        slots=draw(st.integers(1, 4)),
        leaves_whole=draw(st.booleans()),
    )


def played(shape: Shape) -> Play:
    async def work() -> Play:
        play = Play(shape)
        async with asyncio.timeout(100_000):
            await play.run(STEPS)
        return play

    return run_virtually(work())


@settings(max_examples=200)
@given(shapes())
def test_whatever_is_shared_every_answer_is_whole_and_trained_on_once_within_the_bound(shape: Shape) -> None:
    play = played(shape)
    trained = [number for numbers in play.trained for number in numbers]
    assert len(set(trained)) == len(trained) == STEPS * shape.bounds.num_groups
    assert max(play.oldest) <= shape.bounds.max_staleness
    for number in trained:
        answers = play.answers[number]
        lengths = [length_of(shape, number, i) for i in range(shape.group_size)]
        whole = [answer.finish_reason == "stop" for answer in answers]
        enough = shape.enough if number % 2 and shape.enough else shape.group_size
        assert sum(whole) >= enough
        for answer, length, is_whole in zip(answers, lengths, whole, strict=True):
            assert answer.token_ids.tolist() == list(range(1, answer.num_tokens + 1))  # no token lost, none twice
            assert answer.num_tokens == length if is_whole else answer.num_tokens < length
            assert answer.policy_versions.tolist() == sorted(answer.policy_versions)
    assert all(engine.strategy.most_running <= shape.slots for engine in play.engines)
    for client in play.clients:
        assert not client._engines._has_line()
        assert all(client._router.load(rank) == 0 for rank in range(len(play.engines)))


def shape_of(*engines: int, ratio: int = 4, **changes: Any) -> Shape:
    """A trainer on device 0, a group and a half of which an engine holds half."""
    given: dict[str, Any] = {"group_size": 2, "seed": 3, "scorers": [], "slots": 2}
    bounds = RolloutBounds(4, ratio, 1, 2 if ratio else 0)
    each = [frozenset({device}) for device in engines]
    return Shape(engines=each, trainer=frozenset({0}), bounds=bounds, **given | changes)


def test_engines_beside_the_trainer_sample_and_those_that_leave_stand_still() -> None:
    partly = played(shape_of(0, 1))
    assert partly.infer.told["hand_over"] == partly.infer.told["load_states"] / 2 == STEPS
    assert partly.infer.told["offload_states"] == 0 and partly.sampled_in_turns > 0
    assert sum(engine.worker.usage(TraceOptions()).counts.get("moved_answers", 0) for engine in partly.engines) > 0
    answers = [answer for answers in partly.answers.values() for answer in answers]
    assert any(len(set(answer.policy_versions.tolist())) > 1 for answer in answers)
    for shape in (shape_of(0), shape_of(0, 1, leaves_whole=True), shape_of(0, 1, scorers=[frozenset({0, 1})])):
        assert played(shape).infer.told["offload_states"] > 0


def test_without_rollouts_ahead_nothing_is_handed_over_and_the_answers_are_those_of_devices_apart() -> None:
    shared, apart = played(shape_of(0, 1, ratio=0)), played(shape_of(1, 2, ratio=0))
    assert shared.infer.told == {"offload_states": STEPS, "load_states": 2 * STEPS - 1}  # weights come first
    assert apart.infer.told == {}
    assert shared.trained == apart.trained
    for number, answers in shared.answers.items():
        assert [answer.token_ids.tolist() for answer in answers] == [
            answer.token_ids.tolist() for answer in apart.answers[number]
        ]
