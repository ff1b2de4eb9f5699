"""Requests that share an engine's slots: by order, then as they came."""

import asyncio
import random
from collections.abc import Sequence

from roll.distributed.executor.rollout.answer_slots import AnswerSlots


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def take(slots: AnswerSlots, name: str, most: int, order: int = 0) -> asyncio.Task[int]:
    return asyncio.create_task(slots.take(name, most, slots.place(order)))


def test_who_leaves_the_line_or_is_cancelled_takes_no_slot() -> None:
    async def play() -> None:
        slots = AnswerSlots(2)
        assert await slots.take("first", 2, slots.place()) == 2
        left, cancelled, late = (take(slots, name, 2) for name in ("left", "cancelled", "late"))
        await settle()
        slots.leave(["left", "unknown"])
        cancelled.cancel()
        await settle()
        assert await left == 0
        assert not late.done()
        slots.give_back(2)
        assert await late == 2
        waiting = take(slots, "waiting", 1)
        await settle()
        slots.give_back(2)
        await asyncio.sleep(0)  # its turn has come, and is lost in the same moment
        waiting.cancel()
        await settle()
        assert await slots.take("whole", 2, slots.place()) == 2

    asyncio.run(play())


def test_nobody_is_overtaken_by_a_higher_order_and_all_slots_come_back_whoever_is_cancelled() -> None:
    """Hundreds of schedules: requests come, end answer by answer, are cancelled and leave at random."""

    async def play(seed: int) -> None:
        draw = random.Random(seed)
        slots = AnswerSlots(count := draw.randint(1, 6))
        waiting: dict[str, int] = {}  # by name: order
        held: list[str] = []

        async def serve(name: str, num_answers: int, order: int) -> None:
            place = slots.place(order)
            while num_answers:
                waiting[name] = order
                try:
                    granted = await slots.take(name, num_answers, place)
                finally:
                    del waiting[name]
                if not granted:
                    return
                assert all(order <= other for other in waiting.values())
                held.extend([name] * granted)
                assert len(held) <= count
                num_answers -= granted

        tasks = [
            asyncio.create_task(serve(str(n), draw.randint(1, 8), draw.randint(-1, 3)))
            for n in range(draw.randint(1, 12))
        ]
        while not all(task.done() for task in tasks):
            match draw.choice(["end", "end", "end", "cancel", "leave", "wait"]):
                case "end" if held:
                    held.pop(draw.randrange(len(held)))
                    slots.give_back(1)
                case "cancel":
                    draw.choice(tasks).cancel()
                case "leave":
                    slots.leave([str(draw.randrange(12))])
            await asyncio.sleep(0)
        errors: Sequence[object] = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in errors} <= {type(None), asyncio.CancelledError}
        slots.give_back(len(held))
        await settle()
        assert await slots.take("all", 99, slots.place()) == count

    for seed in range(300):
        asyncio.run(play(seed))
