"""What an engine's time and tokens go to."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.processes.worker_process import MemoryWatch
from roll.distributed.strategy.base import State
from roll.types.rollout import FIRST_IN_LINE, Generation, GenerationRequest
from roll.utils.worker_usage import IDLE, Meter, TraceOptions, Usage

SAMPLING, HELD, AWAY = "sampling", "held", "away"


class EngineMeter:
    """An engine is away while something of it is off its devices, else held while a weight update keeps it from
    sampling, else sampling while it works on an answer, else idle."""

    def __init__(self, blueprint: Blueprint, clock: Callable[[], float] = time.perf_counter):
        self._role, self._rank = blueprint.role, blueprint.rank
        self._recomputes = not blueprint.keeps_kv
        self._meter = Meter(self._role, f"rank {self._rank}", clock)
        self._memory = MemoryWatch(f"{self._role}-{self._rank}")
        self._counts: defaultdict[str, float] = defaultdict(
            float
        )  # here, since the meter has a lock, which every answer would take
        self._num_open = 0
        self._is_held = False
        self._away: frozenset[State] = frozenset()

    def begin(self, request: GenerationRequest) -> None:
        """The engine reads a prompt, once for all its answers."""
        num_prompt = len(request.prompt_ids)
        self._counts["prompt_tokens"] += num_prompt
        self._counts["pairs"] += num_prompt * (num_prompt + 1) / 2
        if request.order != FIRST_IN_LINE:
            self._meter.spans.mark(request.order, "begun")
        self._open(request.num_samples)

    def answered(self, request: GenerationRequest, answer: Generation) -> None:
        """An answer is there, whole or cut short."""
        num_prompt, sampled, versions = len(request.prompt_ids), answer.num_tokens, answer.policy_versions
        self._counts["other_tokens" if request.order == FIRST_IN_LINE else "sampled_tokens"] += sampled
        self._counts["pairs"] += sampled * num_prompt + sampled * (sampled + 1) / 2
        if self._recomputes and sampled and versions[0] != versions[-1]:
            self._counts["recomputed_tokens"] += recomputed(num_prompt, versions)
        self._open(-1)

    def moved(self) -> None:
        """Another engine goes on with what there is of an answer."""
        self._counts["moved_answers"] += 1

    def cut(self, num_answers: int) -> None:
        """These never came."""
        self._open(-num_answers)

    def hold(self) -> None:
        self._is_held = True
        self._sample()

    def go_on(self) -> None:
        self._is_held = False
        self._sample()

    def leave(self, states: frozenset[State]) -> None:
        self._away |= states
        self._sample()

    def come_back(self, states: frozenset[State]) -> None:
        self._away -= states
        self._sample()

    def take(self, request: TraceOptions) -> Usage:
        for name, value in self._counts.items():
            self._meter.count(name, value)
        self._counts.clear()
        return self._memory.add_to(self._meter.take(request.trace), request)

    def _open(self, num_answers: int) -> None:
        if num_answers:
            self._num_open += num_answers
            self._meter.spans.level(self._role, f"rank {self._rank}: answers under way", self._num_open)
            self._sample()

    def _sample(self) -> None:
        self._meter.go(AWAY if self._away else HELD if self._is_held else SAMPLING if self._num_open else IDLE)


def recomputed(num_given: int, versions: np.ndarray) -> int:
    """Tokens whose keys and values were computed anew because weights changed under an answer: at each change, the
    prompt and what was sampled before it.

    Example: 4 given, versions 1 1 1 2 2: the fourth token needed the 4 + 3 before it under version 2, so 7.
    """
    changes = np.flatnonzero(np.diff(versions)) + 1
    return int((num_given + changes).sum())


# How many answers an engine works on at once; further ones wait in line.


class QueueEntry(NamedTuple):
    """A position in the queue: by order, then by arrival."""

    order: int
    arrival: int


class _Turn(NamedTuple):
    place: QueueEntry
    name: str
    most: int
    granted: asyncio.Future[int]


class AnswerSlots:
    """The first in line gets what is free, as many slots as it wants and at least one: no slot waits for others to
    become free. The smallest order is served first, equal ones as they come. What is given back in one turn of the
    event loop is handed out together.

    Example: 4 slots; requests for 3, 2 and 1 answers: the first gets 3, the second 1. When the first gives two back
    the second, which has one answer to begin yet, gets one of them, and the third the other.
    """

    def __init__(self, count: int | None = None):
        """None: no limit."""
        self._count = count
        self._free = count or 0
        self._line: list[_Turn] = []  # a heap
        self._num_arrived = 0
        self._grant_is_due = False

    @property
    def num_waiting(self) -> int:
        return len(self._line)

    def place(self, order: int = 0) -> QueueEntry:
        """A new position behind all of this order and of smaller ones. A request that takes its slots one after the
        other keeps it."""
        self._num_arrived += 1
        return QueueEntry(order, self._num_arrived)

    async def take(self, name: str, most: int, place: QueueEntry) -> int:
        """How many slots there are for this request, from 1 to `most`; 0 if `leave` came first."""
        if self._count is None:
            return most
        if not self._line and self._free:
            return self._hand_out(most)
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        heappush(self._line, _Turn(place, name, most, granted))
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give_back(granted.result())
            raise

    def give_back(self, num_slots: int) -> None:
        if self._count is None or not num_slots:
            return
        self._free += num_slots
        if self._line and not self._grant_is_due:
            self._grant_is_due = True
            asyncio.get_running_loop().call_soon(self._grant)

    def leave(self, names: Iterable[str] | None = None) -> None:
        """The requests under these names (None: all), where they wait, wait no longer."""
        gone = None if names is None else set(names)
        staying: list[_Turn] = []
        for turn in self._line:
            if gone is not None and turn.name not in gone:
                staying.append(turn)
            elif not turn.granted.done():
                turn.granted.set_result(0)
        heapify(staying)
        self._line = staying

    def _grant(self) -> None:
        self._grant_is_due = False
        while self._line and self._free:
            turn = heappop(self._line)
            if not turn.granted.done():  # else cancelled meanwhile
                turn.granted.set_result(self._hand_out(turn.most))

    def _hand_out(self, most: int) -> int:
        count = min(most, self._free)
        self._free -= count
        return count
