"""The engine on a virtual clock against what its rules give by hand, and by a loop over all its events."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.distributed.scheduler.event_loop import run_virtually
from roll.simulate.engine_model import Answer, EngineModel
from roll.simulate.setup import Costs
from tests.unit.simulate.schedules import costs

Event = tuple[float, Callable[[EngineModel], None]]


def play(made: Costs, *events: Event) -> tuple[EngineModel, dict[int, float]]:
    """The engine after all, and when each answer ended, by its order."""
    ends: dict[int, float] = {}

    async def work() -> EngineModel:
        loop = asyncio.get_running_loop()
        engine = EngineModel(made)
        ENDED[0] = lambda number: ends.setdefault(number, loop.time())
        for at, what in events:
            loop.call_at(at, what, engine)
        await asyncio.sleep(1e6)
        return engine

    return run_virtually(work()), ends


ENDED: list[Callable[[int], Any]] = [lambda number: None]


def ask(number: int, length: int, context: int = 0, key: str = "") -> Callable[[EngineModel], None]:
    answer = Answer(context, length, lambda ended: ENDED[0](number))
    return lambda engine: engine.begin([answer], key or str(number))


def test_answers_share_steps_prefills_and_the_cache() -> None:
    """3 steps of 2 s for both, then 2 steps of 1 s for the longer."""
    _, ends = play(costs(decode_s=((1, 1.0), (2, 2.0))), (0.0, ask(0, 3)), (0.0, ask(1, 5)))
    assert ends == pytest.approx({0: 6.0, 1: 8.0})
    # 2 steps alone in 2 s, then 2 s for each of the other 3 of the first; the second has one left, alone.
    _, ends = play(costs(decode_s=((1, 1.0), (2, 2.0))), (0.0, ask(0, 5)), (2.0, ask(1, 4)))
    assert ends == pytest.approx({0: 8.0, 1: 9.0})
    made = costs(prefill_tokens_per_s=10.0)
    first, again, other = ask(0, 4, 20, key="a"), ask(1, 1, 20, key="a"), ask(2, 1, 24)
    _, ends = play(made, (0.0, first), (10.0, again), (20.0, other))
    assert ends == pytest.approx({0: 2.0 + 4.0, 1: 10.0 + 1.0, 2: 20.0 + 2.4 + 1.0})
    # Seconds of step i: 1 + context so far; over 2 tokens the integral of 1 + v is 4.
    _, ends = play(costs(decode_context_s=1.0), (0.0, ask(0, 2)))
    assert ends == pytest.approx({0: 4.0})
    made = costs(prefill_tokens_per_s=10.0)
    back: list[Event] = [(3.0, lambda engine: engine.stop("away")), (8.0, lambda engine: engine.go_on())]
    _, ends = play(made, (0.0, ask(0, 5, context=8)), *back)
    # .8 s of prefill, 2.2 tokens by 3 s; at 8 s 8 + 2.2 tokens are computed in 1.1 s (whole tokens), 2.8 are left
    assert ends == pytest.approx({0: 8.0 + 1.1 + 2.8})


def test_an_engine_that_is_stopped_goes_on_where_it_was_and_tokens_keep_their_versions() -> None:
    found: list[Answer] = []
    answer = Answer(0, 4, found.append)
    engine, _ = play(
        costs(),
        (0.0, lambda engine: engine.begin([answer], "")),
        (1.5, lambda engine: engine.stop("held")),
        (3.5, lambda engine: engine.set_version(7)),
        (3.5, lambda engine: engine.go_on()),
    )
    assert found == [answer] and answer.versions == [(0, pytest.approx(1.5)), (7, pytest.approx(2.5))]
    assert (engine.catch_up().held, engine.seconds.busy) == pytest.approx((2.0, 4.0))


def test_what_an_answer_that_is_taken_out_leaves_is_free_for_others() -> None:
    gone = Answer(0, 100, lambda ended: ENDED[0](0))
    _, ends = play(
        costs(decode_s=((1, 1.0), (2, 2.0))),
        (0.0, lambda engine: engine.begin([gone], "")),
        (0.0, ask(1, 5)),
        (4.0, lambda engine: engine.take_out([gone])),
    )
    assert ends == pytest.approx({1: 4.0 + 3.0})


def by_all_events(made: Costs, jobs: list[tuple[float, int]]) -> dict[int, float]:
    """From event to event, with what is left of every answer."""
    now, left, ends = 0.0, dict[int, float](), dict[int, float]()
    waiting = sorted((at, number, length) for number, (at, length) in enumerate(jobs))
    while waiting or left:
        next_join = waiting[0][0] if waiting else float("inf")
        step_s = made.decode_step_s(len(left)) if left else 1.0
        next_end = now + min(left.values()) * step_s if left else float("inf")
        until = min(next_join, next_end)
        left = {number: tokens - (until - now) / step_s for number, tokens in left.items()}
        now = until
        for number in [number for number, tokens in left.items() if tokens < 1e-6]:
            del left[number]
            ends[number] = now
        while waiting and waiting[0][0] <= now:
            _, number, length = waiting.pop(0)
            left[number] = float(length)
    return ends


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 40).map(lambda n: n / 4), st.integers(1, 30)), min_size=1, max_size=12))
def test_a_shared_counter_gives_what_all_events_one_by_one_give(jobs: list[tuple[float, int]]) -> None:
    made = costs(decode_s=((1, 0.5), (3, 0.75), (8, 2.0)))
    _, ends = play(made, *((at, ask(number, length)) for number, (at, length) in enumerate(jobs)))
    assert ends == pytest.approx(by_all_events(made, jobs), abs=1e-4)


def test_steps_are_straight_between_points_and_beyond_the_last_two() -> None:
    made = Costs(decode_s=((1, 0.01), (3, 0.02), (5, 0.06)))
    assert [made.decode_step_s(n) for n in (1, 2, 3, 4, 6)] == pytest.approx([0.01, 0.015, 0.02, 0.04, 0.08])
    assert Costs(decode_s=((2, 0.01),)).decode_step_s(9) == 0.01
