"""A rollout engine on a virtual clock: answers share its steps, and cost one event each.

All running answers advance together, by one token per decode step. `_tokens` counts those steps, so an answer of L
tokens that joins at count V ends at V + L, whatever else comes and goes: one heap of ends and one timer per engine.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from roll.simulate.setup import Costs
from roll.utils.spans import Interval, Spans

_NOISE = 1e-6  # of a token: what rounding makes of a whole one


def nobody(answer: Answer) -> None:
    """Waits for it."""


@dataclass(eq=False, slots=True)
class Answer:
    """`context` tokens are before it, `length` it will have. `versions`: of the weights, with the tokens that they
    sampled, as far as it has left the engine's steps."""

    order: int
    context: int
    length: int
    ended: Callable[[Answer], None]
    done: float = 0.0
    versions: list[tuple[int, float]] = field(default_factory=list)
    joined: float = 0.0  # the count of steps then
    stay: int = 0  # how often it has joined: an end of an earlier stay is void
    is_lost: bool = False  # nobody wants it any more

    @property
    def in_cache(self) -> float:
        return self.context + self.done

    @property
    def is_whole(self) -> bool:
        return self.done >= self.length - _NOISE

    def notify(self) -> None:
        """Report that the answer has ended, once, and drop the callback. Nobody is told twice, and nothing is kept
        alive by it."""
        ended, self.ended = self.ended, nobody
        ended(self)


@dataclass
class EngineSeconds:
    """Seconds of an engine: sampling and prefilling, paused for new weights, away from its devices, idle."""

    busy: float = 0.0
    held: float = 0.0
    away: float = 0.0
    idle: float = 0.0

    def plus(self, other: EngineSeconds, sign: int = 1) -> EngineSeconds:
        return EngineSeconds(**{name: value + sign * getattr(other, name) for name, value in vars(self).items()})

    def less(self, other: EngineSeconds) -> EngineSeconds:
        return self.plus(other, -1)


class EngineModel:
    """Asks for nothing but the loop's clock, and calls `Answer.ended` of each answer."""

    def __init__(self, costs: Costs, spans: Spans, rank: str = "0"):
        """`spans` are told of every stretch of time in which the engine did something."""
        self._costs = costs
        self._loop = asyncio.get_running_loop()
        self._spans, self._rank = spans, rank
        self.seconds = EngineSeconds()
        self.num_sampled = 0.0
        self.num_prefilled = 0
        self.num_preemptions = 0
        self._version = 0
        self._updates: list[tuple[float, int]] = [(0.0, 0)]  # count of steps, version
        self._tokens = 0.0
        self._base = 0.0  # tokens in the KV cache, less the running answers' share of `_tokens`
        self._running: dict[Answer, None] = {}
        self._ends: list[tuple[float, int, int, Answer]] = []  # a heap
        self._line: list[tuple[int, int, Answer, int]] = []  # a heap: those for which the KV cache has no room
        self._count = 0  # breaks ties in the heaps
        self._cached: set[str] = set()  # whose beginning need not be prefilled again
        self._state, self._since = "idle", self._loop.time()
        self._at = self._loop.time()
        self._stalled_until = 0.0
        self._stopped: str | None = None  # why it stands still
        self._slowness = 1.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_plan_due = False

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def kv_tokens(self) -> float:
        return self._base + len(self._running) * self._tokens

    def begin(self, answers: list[Answer], key: str, new_tokens: int) -> None:
        """Answers with the same beginning. Where `key` has been here since the last weights, but `new_tokens` of it
        are cached; the others cost a prefill, once for all."""
        self._advance()
        prefill = new_tokens if key in self._cached else answers[0].context
        self._cached.add(key)
        for answer in answers:
            self._wait_for_room(answer, 0)
        if prefill:
            self._prefill(prefill)
        self._admit()
        self._plan_soon()

    def go_on_with(self, answers: list[Answer]) -> None:
        """Answers of which another engine has sampled a part: each costs the prefill of all before its next token."""
        self._advance()
        for answer in answers:
            self._wait_for_room(answer, math.ceil(answer.in_cache))
        self._admit()
        self._plan_soon()

    def take_out(self, answers: list[Answer]) -> None:
        """Another engine goes on with them."""
        self._advance()
        gone = {*answers}
        for answer in answers:
            if answer in self._running:
                self._leave(answer)
            answer.stay += 1  # its end is void
        self._line = [entry for entry in self._line if entry[2] not in gone]
        heapify(self._line)
        self._cached.clear()
        self._plan_soon()

    def stop(self, why: str) -> None:
        """Stop sampling until `go_on`: "held" for new weights, or "away" from its devices."""
        self._advance()
        self._stopped = why
        self._plan_soon()

    def go_on(self, recompute: bool) -> None:
        """Continues after a pause, with the KV cache or after computing it again."""
        self._advance()
        self._stopped = None
        if recompute:
            self._cached.clear()
            self._prefill(math.ceil(self.kv_tokens))
        self._plan_soon()

    def slow_down(self, slowness: float) -> None:
        """Each decode step takes so many times as long from now on."""
        self._advance()
        self._slowness = slowness
        self._plan_soon()

    def set_version(self, version: int) -> None:
        self._advance()
        self._version = version
        self._updates.append((self._tokens, version))

    def abort(self, answers: list[Answer]) -> None:
        """Drop answers that are no longer wanted. Those that have ended are left as they are."""
        self._advance()
        for answer in answers:
            if answer in self._running:
                self._leave(answer)
            answer.stay += 1  # its end is void
            answer.is_lost, answer.ended = True, nobody
        self._admit()
        self._plan_soon()

    def _wait_for_room(self, answer: Answer, prefill: int) -> None:
        self._count += 1
        heappush(self._line, (answer.order, self._count, answer, prefill))

    def _admit(self) -> None:
        """Admit the first answers in line for which the KV cache has room; one alone always has room."""
        most = self._costs.kv_tokens
        while self._line:
            answer, prefill = self._line[0][2:]
            if answer.is_lost:
                heappop(self._line)
                continue
            if most is not None and self._running and self.kv_tokens + answer.in_cache >= most:
                return
            heappop(self._line)
            if prefill:
                self._prefill(prefill)
            self._join(answer)

    def _join(self, answer: Answer) -> None:
        answer.joined, answer.stay = self._tokens, answer.stay + 1
        self._running[answer] = None
        self._base += answer.in_cache - self._tokens
        self._count += 1
        heappush(self._ends, (self._tokens + answer.length - answer.done, self._count, answer.stay, answer))

    def _leave(self, answer: Answer) -> None:
        del self._running[answer]
        self._base -= answer.in_cache - answer.joined
        answer.versions += self._sampled_by(answer.joined)
        answer.done += self._tokens - answer.joined
        if not self._running:
            self._base = 0.0

    def _sampled_by(self, first: float) -> list[tuple[int, float]]:
        """Versions, and how many tokens they sampled from a count of steps until now."""
        updates = self._updates
        if updates[-1][0] <= first:
            return [(updates[-1][1], self._tokens - first)]
        place = bisect_right(updates, (first, math.inf)) - 1
        starts = [first, *(at for at, _ in updates[place + 1 :])]
        ends = [*starts[1:], self._tokens]
        versions = [version for _, version in updates[place:]]
        return [(v, end - start) for v, start, end in zip(versions, starts, ends, strict=True) if end > start]

    def _prefill(self, num_tokens: int) -> None:
        self.num_prefilled += num_tokens
        start = max(self._loop.time(), self._stalled_until)
        self._stalled_until = start + num_tokens / self._costs.prefill_tokens_per_s

    def _advance(self) -> None:
        """Counts the steps since the last time."""
        now = self._loop.time()
        if now > self._at:
            state = self._stopped or ("busy" if self._running or self._stalled_until > self._at else "idle")
            self._account(state, now)
            if self._stopped is not None:
                self._stalled_until = max(self._stalled_until, self._at) + now - self._at  # the stall goes on later
            elif self._running:
                self._set_tokens(self._tokens + self._steps_in(now - max(self._at, self._stalled_until)))
            self._at = now

    def _set_tokens(self, tokens: float) -> None:
        self.num_sampled += (tokens - self._tokens) * len(self._running)
        self._tokens = tokens

    def _account(self, state: str, now: float) -> None:
        setattr(self.seconds, state, getattr(self.seconds, state) + now - self._at)
        if self._spans.is_on and state != self._state:
            self._notify()
            self._state, self._since = state, self._at

    def _notify(self) -> None:
        if self._state != "idle" and self._at > self._since:
            self._spans.add(Interval("actor_infer", self._rank, self._state, self._since, self._at))

    def catch_up(self) -> EngineSeconds:
        """All that it did until now."""
        self._advance()
        return self.seconds

    def close(self) -> None:
        """The last stretch of time is told of."""
        self._advance()
        self._notify()

    def _rate(self) -> tuple[float, float]:
        """Seconds of the next step, and by how much each further one takes longer, since the contexts grow."""
        slope = self._costs.decode_context_s * self._slowness
        first = self._costs.decode_step_s(len(self._running)) * self._slowness + slope * self.kv_tokens
        return first, slope * len(self._running)

    def _seconds_for(self, steps: float) -> float:
        first, growth = self._rate()
        return first * steps + growth * steps * steps / 2

    def _steps_in(self, seconds: float) -> float:
        if seconds <= 0:
            return 0.0
        first, growth = self._rate()
        if not growth:
            return seconds / first
        return 2 * seconds / (first + math.sqrt(first * first + 2 * growth * seconds))

    def _plan_soon(self) -> None:
        """Plans once for all events in one turn of the event loop."""
        if not self._is_plan_due:
            self._is_plan_due = True
            self._loop.call_soon(self._plan)

    def _plan(self) -> None:
        """Sets the timer to the next end, or to where the KV cache is full."""
        self._is_plan_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stopped is not None or not self._running:
            return
        self._advance()
        target = self._next_end()
        if self._costs.kv_tokens is not None and len(self._running) > 1:
            target = min(target, (self._costs.kv_tokens - self._base) / len(self._running))
        target = max(target, self._tokens)
        at = max(self._loop.time(), self._stalled_until) + self._seconds_for(target - self._tokens)
        self._timer = self._loop.call_at(at, self._reach, target)

    def _next_end(self) -> float:
        while self._ends[0][3].stay != self._ends[0][2]:
            heappop(self._ends)
        return self._ends[0][0]

    def _reach(self, target: float) -> None:
        self._timer = None
        self._advance()
        self._set_tokens(target)
        ended = []
        while self._ends and self._ends[0][0] <= target + _NOISE:
            _, _, stay, answer = heappop(self._ends)
            if stay == answer.stay:
                self._leave(answer)
                ended.append(answer)
        most = self._costs.kv_tokens
        if not ended and most is not None and self.kv_tokens >= most - _NOISE * len(self._running):
            self._preempt()
        self._admit()
        for answer in ended:
            answer.notify()
        self._plan()

    def _preempt(self) -> None:
        """The one that came last loses its place in the KV cache, and computes it again when there is room."""
        last = max(self._running, key=lambda answer: (answer.order, answer.joined))
        self._leave(last)
        last.stay += 1  # its end is void
        self.num_preemptions += 1
        self._wait_for_room(last, math.ceil(last.in_cache))
