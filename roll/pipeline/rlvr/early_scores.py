"""Scores of a group's answers, each begun as soon as the answer is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from roll.types.rollout import Generation
from roll.utils.background import start

T = TypeVar("T")
ScoreAll = Callable[[Sequence[Generation]], Awaitable[Sequence[T]]]


class EarlyScores(Generic[T]):
    """`answered` is told of answers while others of the group are sampled; `of` gives what `score` made of each, and
    has those scored together of which nobody told."""

    def __init__(self, score: ScoreAll[T]):
        self._score = score
        self._begun: dict[int, asyncio.Task[T]] = {}

    def answered(self, number: int, generation: Generation) -> None:
        self._begun[number] = start(self._one(generation))

    async def of(self, answers: Mapping[int, Generation]) -> dict[int, T]:
        """By number."""
        others = [number for number in answers if number not in self._begun]
        late = await self._score([answers[number] for number in others]) if others else ()
        found = dict(zip(others, late, strict=True))
        return {number: found[number] if number in found else await self._begun[number] for number in answers}

    def cancel(self) -> None:
        """Ends what nobody waits for any more."""
        for task in self._begun.values():
            if not task.cancel() and not task.cancelled():
                task.exception()  # of another answer is told already

    async def _one(self, generation: Generation) -> T:
        (scored,) = await self._score([generation])
        return scored
