"""How long the answers of cancelled requests were when their engine cut them short."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from roll.types.rollout import Generation

CutAnswer = tuple[int, bool]
"""Tokens of an answer that nobody waits for any more, and whether it had come to its end."""


class CutAnswers:
    """Belongs to one event loop. An engine hands over what it has of a request that is aborted. Lengths are kept until
    `take`, where somebody takes them (`are_taken`)."""

    def __init__(self, are_taken: bool) -> None:
        self._are_taken = are_taken
        self._open: dict[tuple[int, str], int] = {}  # answers that an engine owes, by its rank and the request
        self._came: list[CutAnswer] = []
        self._all_came = asyncio.Event()
        self._all_came.set()

    def waits_for(self, rank: int) -> bool:
        return any(engine == rank for engine, _ in self._open)

    def owes(self, rank: int, request_id: str, num_answers: int) -> None:
        self._open[rank, request_id] = num_answers
        self._all_came.clear()

    def comes(self, rank: int, request_id: str, answers: Iterable[Generation] | None) -> None:
        """Some of what is owed, or None where the engine hands nothing over."""
        num_open = self._open.pop((rank, request_id), 0)
        came = [(answer.num_tokens, answer.finish_reason not in ("abort", "moved")) for answer in answers or ()]
        if self._are_taken:
            self._came += came
        if answers is not None and num_open > len(came):
            self._open[rank, request_id] = num_open - len(came)
        elif not self._open:
            self._all_came.set()

    def gone(self, rank: int) -> None:
        """The engine hands nothing over any more."""
        self._open = {key: count for key, count in self._open.items() if key[0] != rank}
        if not self._open:
            self._all_came.set()

    async def take(self) -> list[CutAnswer]:
        """All since the last time, once the engines have handed them over."""
        await self._all_came.wait()
        came, self._came = self._came, []
        return came
