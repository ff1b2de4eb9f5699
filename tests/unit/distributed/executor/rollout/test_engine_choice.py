"""Who gets an engine when, while others are away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from roll.distributed.executor.rollout.answers import Continuation
from roll.distributed.executor.rollout.engine_choice import EngineChoice, PendingRequest
from roll.errors import WorkerError
from roll.types.rollout import GenerationRequest, SamplingParams


def asked(number: int, num_samples: int = 1) -> PendingRequest:
    request = GenerationRequest(
        str(number), np.array([number], np.int32), SamplingParams(3), num_samples=num_samples, order=number
    )
    return PendingRequest(request, Continuation(request))


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Players:
    """Requests that ask for an engine, and where each got one."""

    def __init__(self, engines: EngineChoice):
        self.engines = engines
        self.got: dict[str, int | None] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, *requests: PendingRequest) -> None:
        for one in requests:
            self.tasks[one.request.request_id] = asyncio.create_task(self._play(one))
        await settled()

    async def _play(self, one: PendingRequest) -> None:
        replica = await self.engines.choose(one)
        self.got[one.request.request_id] = None if replica is None else replica.rank

    def take(self) -> dict[str, int | None]:
        got, self.got = self.got, {}
        return got


def play(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


def test_while_an_engine_is_away_the_others_get_no_more_than_they_have_room_for_and_the_oldest_first() -> None:
    async def work() -> None:
        engines = EngineChoice(2, room=2, waits=False)
        players = Players(engines)
        engines.close(engines.replicas[0])
        await players.begin(asked(5), asked(6), asked(9), asked(8), asked(7))
        assert players.take() == {"5": 1, "6": 1}
        engines.has_less_load(1, 1)
        await settled()
        assert players.take() == {"7": 1}  # before 8 and 9, which asked earlier
        await players.begin(asked(4))
        assert players.take() == {}
        engines.has_less_load(1, 1)
        await settled()
        assert players.take() == {"4": 1}
        engines.replicas[0].is_away = False
        engines.reopen(engines.replicas[0])
        await settled()
        assert players.take() == {"8": 0, "9": 0}  # the load spreads again
        await players.begin(*(asked(number) for number in range(10, 20)))
        assert Counter(players.take().values()) == {0: 5, 1: 5}  # all are here: engines have lines of their own

    play(work())


def test_what_is_cut_in_line_is_asked_of_nobody() -> None:
    async def work() -> None:
        engines = EngineChoice(2, room=1, waits=False)
        players = Players(engines)
        engines.close(engines.replicas[0])
        first, second = asked(1), asked(2)
        await players.begin(first, second)
        second.is_cut = True
        engines.retry_choice()
        await settled()
        assert players.take() == {"1": 1, "2": None} and engines.router.load(1) == 1

    play(work())


@pytest.mark.parametrize("waits", [False, True])
def test_when_the_last_engine_that_stays_dies_requests_wait_for_those_that_are_away(waits: bool) -> None:
    async def work() -> None:
        engines = EngineChoice(2, room=1, waits=waits)
        players = Players(engines)
        engines.close(engines.replicas[0])
        await players.begin(asked(1), asked(2))
        assert players.take() == {"1": 1}
        engines.replicas[1].failure = WorkerError("it died")
        engines.leave(engines.replicas[1])
        await settled()
        assert players.take() == {} and not players.tasks["2"].done() and engines.router.has_engines
        engines.replicas[0].is_away = False
        engines.reopen(engines.replicas[0])
        await settled()
        assert players.take() == {"2": 0}

    play(work())


@pytest.mark.parametrize("dies", [False, True])
def test_a_request_whose_engine_goes_in_the_tick_in_which_it_was_called_gets_another(dies: bool) -> None:
    async def work() -> None:
        engines = EngineChoice(2, room=1, waits=False)
        players = Players(engines)
        first, second = engines.replicas
        engines.close(first)
        await players.begin(asked(1), asked(2))
        assert players.take() == {"1": 1}
        engines.has_less_load(1, 1)  # calls 2
        first.is_away = False
        engines.reopen(first)
        if dies:
            second.failure = WorkerError("it died")
            engines.leave(second)
        else:
            engines.close(second)
        await settled()
        assert players.take() == {"2": 0}
        assert (engines.router.load(0), engines.router.load(1)) == (1, 0)

    play(work())
