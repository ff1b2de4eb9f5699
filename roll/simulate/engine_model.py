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
from heapq import heappop, heappush

from roll.simulate.setup import Costs

_NOISE = 1e-6  # of a token: what rounding makes of a whole one


def nobody(answer: Answer) -> None:
    """Waits for it."""


@dataclass(eq=False, slots=True)
class Answer:
    """`context` tokens are before it, `length` it will have. `versions`: of the weights, with the tokens that they
    sampled, as far as it has left the engine's steps."""

    context: int
    length: int
    ended: Callable[[Answer], None]
    done: float = 0.0
    versions: list[tuple[int, float]] = field(default_factory=list)
    joined: float = 0.0  # the count of steps then
    stay: int = 0  # how often it has joined: an end of an earlier stay is void

    @property
    def in_cache(self) -> float:
        return self.context + self.done

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


class EngineModel:
    """Asks for nothing but the loop's clock, and calls `Answer.ended` of each answer."""

    def __init__(self, costs: Costs):
        self._costs = costs
        self._loop = asyncio.get_running_loop()
        self.seconds = EngineSeconds()
        self.num_sampled = 0.0
        self._version = 0
        self._updates: list[tuple[float, int]] = [(0.0, 0)]  # count of steps, version
        self._tokens = 0.0
        self._base = 0.0  # tokens in the KV cache, less the running answers' share of `_tokens`
        self._running: dict[Answer, None] = {}
        self._ends: list[tuple[float, int, int, Answer]] = []  # a heap
        self._count = 0  # breaks ties in the heap
        self._cached: set[str] = set()  # whose beginning need not be prefilled again
        self._at = self._loop.time()
        self._stalled_until = 0.0
        self._stopped: str | None = None  # why it stands still
        self._slowness = 1.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_plan_due = False

    @property
    def kv_tokens(self) -> float:
        return self._base + len(self._running) * self._tokens

    def begin(self, answers: list[Answer], key: str) -> None:
        """Answers with the same beginning, which costs a prefill unless `key` has been here since the last weights."""
        self._advance()
        if key not in self._cached:
            self._cached.add(key)
            self._prefill(answers[0].context)
        for answer in answers:
            self._join(answer)
        self._plan_soon()

    def go_on_with(self, answers: list[Answer]) -> None:
        """Answers of which another engine has sampled a part: each costs the prefill of all before its next token."""
        self._advance()
        for answer in answers:
            self._prefill(math.ceil(answer.in_cache))
            self._join(answer)
        self._plan_soon()

    def take_out(self, answers: list[Answer]) -> None:
        """Drop answers: another engine goes on with them, or nobody wants them. Those that have ended are left as they
        are."""
        self._advance()
        for answer in answers:
            if answer in self._running:
                self._leave(answer)
            answer.stay += 1  # its end is void
        self._plan_soon()

    def stop(self, why: str) -> None:
        """Stop sampling until `go_on`: "held" for new weights, or "away" from its devices."""
        self._advance()
        self._stopped = why
        self._plan_soon()

    def go_on(self) -> None:
        """Continues after a pause, with keys and values computed again."""
        self._advance()
        self._stopped = None
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
        start = max(self._loop.time(), self._stalled_until)
        self._stalled_until = start + num_tokens / self._costs.prefill_tokens_per_s

    def _advance(self) -> None:
        """Counts the steps since the last time."""
        now = self._loop.time()
        if now > self._at:
            state = self._stopped or ("busy" if self._running or self._stalled_until > self._at else "idle")
            setattr(self.seconds, state, getattr(self.seconds, state) + now - self._at)
            if self._stopped is not None:
                self._stalled_until = max(self._stalled_until, self._at) + now - self._at  # the stall goes on later
            elif self._running:
                self._set_tokens(self._tokens + self._steps_in(now - max(self._at, self._stalled_until)))
            self._at = now

    def _set_tokens(self, tokens: float) -> None:
        self.num_sampled += (tokens - self._tokens) * len(self._running)
        self._tokens = tokens

    def catch_up(self) -> EngineSeconds:
        """All that it did until now."""
        self._advance()
        return self.seconds

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
        """Sets the timer to the next end."""
        self._is_plan_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stopped is not None or not self._running:
            return
        self._advance()
        target = max(self._next_end(), self._tokens)
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
        for answer in ended:
            answer.notify()
        self._plan()
