"""What a client makes of an engine that does not take its requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from roll.distributed.executor.engine_client import EngineClient
from roll.distributed.executor.failures import Failure
from roll.errors import WorkerError
from roll.types.rollout import GenerationRequest, SamplingParams


class Refusing:
    """An engine that answers every `submit` with `reply`, or raises it, and never has a result."""

    def __init__(self, reply: object):
        self.reply = reply
        self.call = self

    def remote(self, method: str, *arguments: object) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if method == "submit" and isinstance(self.reply, Exception):
            future.set_exception(self.reply)
        elif method == "submit":
            future.set_result(self.reply)
        return future


@dataclass
class Workers:
    handles: list[Refusing]
    role: str = "actor_infer"


@pytest.mark.parametrize("reply", [Failure(0, "ValueError: no room"), TypeError("no room")])
def test_a_request_that_the_engine_does_not_take_fails_instead_of_waiting(reply: object) -> None:
    async def ask() -> None:
        client = EngineClient(Workers([Refusing(reply)]))  # type: ignore[arg-type]
        request = GenerationRequest("r", np.array([1], np.int32), SamplingParams(3))
        await asyncio.wait_for(client.generate(request), 20)

    with pytest.raises(WorkerError, match="actor_infer rank 0 failed in submit.*no room"):
        asyncio.run(ask())
