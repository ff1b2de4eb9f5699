"""Requests that share an engine's slots, in the order they came."""

import asyncio

import pytest

from roll.distributed.executor.rollout.answer_slots import AnswerSlots


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_requests_run_in_their_order_as_slots_come_back() -> None:
    async def play() -> list[str]:
        slots, running = AnswerSlots(4), []

        async def serve(name: str, num_answers: int) -> None:
            assert await slots.take(name, num_answers)
            running.append(name)

        tasks = [asyncio.create_task(serve(*request)) for request in (("a", 3), ("b", 2), ("c", 1), ("huge", 9))]
        await settle()
        assert running == ["a"]
        assert slots.num_waiting == 3
        slots.give_back(3)
        await settle()
        assert running == ["a", "b", "c"]
        slots.give_back(2)
        await settle()
        assert running == ["a", "b", "c"]
        slots.give_back(1)
        await asyncio.gather(*tasks)
        slots.give_back(9)
        assert await slots.take("last", 4)
        return running

    assert asyncio.run(play()) == ["a", "b", "c", "huge"]


def test_who_leaves_the_line_or_is_cancelled_takes_no_slot() -> None:
    async def play() -> None:
        slots = AnswerSlots(2)
        assert await slots.take("first", 2)
        left = asyncio.create_task(slots.take("left", 2))
        cancelled = asyncio.create_task(slots.take("cancelled", 1))
        late = asyncio.create_task(slots.take("late", 2))
        await settle()
        slots.leave(["left", "unknown"])
        cancelled.cancel()
        await settle()
        assert await left is False
        assert not late.done()
        slots.give_back(2)
        assert await late is True
        waiting = asyncio.create_task(slots.take("waiting", 1))
        await settle()
        slots.give_back(2)  # its turn has come, and is lost in the same moment
        waiting.cancel()
        await settle()
        assert await slots.take("whole", 2)

    asyncio.run(play())


def test_without_a_limit_nobody_waits() -> None:
    async def play() -> None:
        slots = AnswerSlots()
        assert all([await slots.take(str(n), 1000) for n in range(10)])
        slots.give_back(1000)
        slots.leave()

    asyncio.run(play())


@pytest.mark.parametrize("names", [None, ["large", "small"]])
def test_of_several_that_leave_together_none_takes_the_place_of_another(names: list[str] | None) -> None:
    async def play() -> None:
        slots = AnswerSlots(4)
        assert await slots.take("running", 3)
        large = asyncio.create_task(slots.take("large", 2))
        small = asyncio.create_task(slots.take("small", 1))
        await settle()
        slots.leave(names)
        assert (await large, await small) == (False, False)
        assert await slots.take("next", 1)

    asyncio.run(play())
