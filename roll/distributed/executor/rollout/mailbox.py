"""What an engine has ready for a client, until that takes it: results that come close together travel together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from roll.distributed.executor.rollout.finished_requests import Finished
from roll.types.rollout import Generation, GenerationRequest

# After the first result, a share of the time it took is spent on waiting for more: they travel together.
_LINGER_FRACTION, _LONGEST_LINGER_S = 0.05, 0.02
# Answers of a request that goes on wait for as long for others to travel with, as a share of the time they took.
_EARLY_FRACTION, _LONGEST_EARLY_S = 0.1, 0.25


@dataclass
class Early:
    """What a request that goes on has ready."""

    request: GenerationRequest
    started: float
    answers: dict[int, Generation] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)


@dataclass
class Mailbox:
    """What is ready for one client."""

    finished: list[Finished] = field(default_factory=list)
    early: dict[str, Early] = field(default_factory=dict)  # by request
    alarm: asyncio.TimerHandle | None = None  # for what came early
    something: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # what still runs
    has_refused: bool = False  # requests, since the last take

    def answered(self, early: Early, number: int, generation: Generation) -> None:
        early.answers[number] = generation
        self.early[early.request.request_id] = early
        if self.alarm is None:
            loop = asyncio.get_running_loop()
            linger_s = min(_LONGEST_EARLY_S, _EARLY_FRACTION * (loop.time() - early.started))
            self.alarm = loop.call_later(linger_s, self.something.set)

    def ended(self, early: Early, result: Mapping[int, Generation] | str) -> None:
        """Stores the end of a request, without the responses that were already taken."""
        self.early.pop(early.request.request_id, None)
        if not isinstance(result, str):
            result = {number: answer for number, answer in result.items() if number not in early.taken}
            if not result:
                return
        self.finished.append((early.request, result))
        self.something.set()

    async def wait(self) -> list[Finished]:
        """Everything that is there once there is something."""
        started = time.monotonic()
        await self.something.wait()
        if self.tasks:
            linger_s = min(_LONGEST_LINGER_S, _LINGER_FRACTION * (time.monotonic() - started))
            await asyncio.wait(self.tasks, timeout=linger_s)
        return self._empty()

    def _empty(self) -> list[Finished]:
        results, self.finished = self.finished, []
        for early in self.early.values():
            results.append((early.request, early.answers))
            early.taken |= early.answers.keys()
            early.answers = {}
        self.early = {}
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None
        return results
