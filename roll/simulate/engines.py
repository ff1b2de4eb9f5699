"""Rollout engines on a clock of numbers.

All answers that an engine runs advance together, by one token per decode step. `tokens` counts those steps, so an
answer of L tokens that joins at count V ends at V + L, whatever else comes and goes: a heap of ends for each engine.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from roll.simulate.setup import Costs

_NOISE = 1e-6  # of a token: what rounding makes of a whole one
_NO_TIME = 1e-9  # seconds


@dataclass(eq=False)
class Group:
    """Answers to one prompt that start under a version of the weights. `open`: how many are still to end."""

    number: int
    version: int
    prompt: int
    lengths: list[int]
    answers: list[Answer] = field(default_factory=list)
    open: int = 0

    def __post_init__(self) -> None:
        self.answers = [Answer(self, length) for length in self.lengths]
        self.open = len(self.answers)

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths) + self.prompt * len(self.lengths)


@dataclass(eq=False, slots=True)
class Answer:
    """`done`: tokens that it had when it last joined an engine, at count `joined` of its steps."""

    group: Group
    length: int
    done: float = 0.0
    joined: float = 0.0

    @property
    def in_cache(self) -> float:
        return self.group.prompt + self.done


class Engine:
    """One engine with its slots. `seconds` by state: busy (sampling and prefilling), held for new weights, away from
    its devices, idle."""

    def __init__(self, costs: Costs, slots: int | None, rank: int):
        self.rank = rank
        self._costs, self._slots = costs, slots or math.inf
        self.seconds = defaultdict[str, float](float)
        self.num_sampled = 0.0
        self.slowness = 1.0
        self.stopped = ""  # why it stands still
        self.stamp = 0  # changes with whatever moves its next end
        self.waiting = list[Answer]()  # by the numbers of their groups, then as they came
        self._running: dict[Answer, None] = {}
        self._ends: list[tuple[float, int, Answer]] = []
        self._at = self._tokens = self._stall_s = 0.0
        self._base = 0.0  # tokens in the KV cache, less the running answers' share of `_tokens`
        self._count = 0  # breaks ties in the heap
        self._cached: set[Group] = set()  # whose prompts need not be prefilled again

    @property
    def num_open(self) -> int:
        return len(self._running) + len(self.waiting)

    @property
    def has_slots(self) -> bool:
        return self.num_open < self._slots

    @property
    def is_busy(self) -> bool:
        return bool(self._running) and not self.stopped

    def advance(self, now: float) -> None:
        """Counts the steps since the last time."""
        passed, self._at = now - self._at, now
        self.seconds[self.stopped or ("busy" if self._running or self._stall_s else "idle")] += passed
        if not self.stopped:
            prefilled = min(self._stall_s, passed)
            self._stall_s -= prefilled
            if self._running:
                self._set_tokens(self._tokens + self._steps_in(passed - prefilled))

    def next_end(self) -> float:
        """Time at which the next answer ends."""
        if not self.is_busy:
            return math.inf
        return self._at + self._stall_s + self._seconds_for(max(0.0, self._ends[0][0] - self._tokens))

    def end_next(self) -> list[Answer]:
        """The answers that end now, whose slots go to those that wait."""
        self._set_tokens(self._ends[0][0])
        ended = []
        while self._ends and self._ends[0][0] <= self._tokens + _NOISE:
            ended.append(heappop(self._ends)[2])
            self._leave(ended[-1])
        self.fill()
        return ended

    def fill(self) -> None:
        """Starts what waits, as far as there are slots."""
        while self.waiting and len(self._running) < self._slots:
            answer = self.waiting.pop(0)
            if answer.done:
                self._prefill(math.ceil(answer.in_cache))
            elif answer.group not in self._cached:
                self._cached.add(answer.group)
                self._prefill(answer.group.prompt)
            answer.joined = self._tokens
            self._running[answer] = None
            self._base += answer.in_cache - answer.joined
            self._count += 1
            heappush(self._ends, (self._tokens + answer.length - answer.done, self._count, answer))

    def take_out(self, unwanted: Callable[[Answer], bool] = lambda answer: True) -> list[Answer]:
        """Drops answers, running and waiting ones."""
        out = [answer for answer in (*self._running, *self.waiting) if unwanted(answer)]
        for answer in out:
            if answer in self._running:
                self._leave(answer)
        kept = set(out)
        self.waiting = [answer for answer in self.waiting if answer not in kept]
        self._ends = [entry for entry in self._ends if entry[2] in self._running]
        heapify(self._ends)
        self.fill()
        return out

    def go_on(self) -> None:
        """Continues after a pause, with keys and values computed again."""
        self.stopped = ""
        self._cached.clear()
        self._prefill(math.ceil(self._kv_tokens))

    def _leave(self, answer: Answer) -> None:
        del self._running[answer]
        self._base -= answer.in_cache - answer.joined
        answer.done += self._tokens - answer.joined
        if not self._running:
            self._base = 0.0

    def _prefill(self, num_tokens: float) -> None:
        self._stall_s += num_tokens / self._costs.prefill_tokens_per_s

    @property
    def _kv_tokens(self) -> float:
        return self._base + len(self._running) * self._tokens

    def _set_tokens(self, tokens: float) -> None:
        self.num_sampled += (tokens - self._tokens) * len(self._running)
        self._tokens = tokens

    def _rate(self) -> tuple[float, float]:
        """Seconds of the next step, and by how much each further one takes longer, since the contexts grow."""
        slope = self._costs.decode_context_s * self.slowness
        first = self._costs.decode_step_s(len(self._running)) * self.slowness + slope * self._kv_tokens
        return first, slope * len(self._running)

    def _seconds_for(self, steps: float) -> float:
        first, growth = self._rate()
        return first * steps + growth * steps * steps / 2

    def _steps_in(self, seconds: float) -> float:
        first, growth = self._rate()
        if not growth:
            return seconds / first
        return 2 * seconds / (first + math.sqrt(first * first + 2 * growth * seconds))


class Engines:
    """All engines and the clock. A group goes to the engine with the fewest answers. Engines that leave their devices
    hand over to those that stay, and what is more than their slots waits in one line meanwhile. Where groups wait the
    smallest number is served first, as by `AnswerSlots` and `EngineChoice`."""

    def __init__(self, costs: Costs, count: int, slots: int | None):
        self.now = 0.0
        self.engines = [Engine(costs, slots, rank) for rank in range(count)]
        self.ended = list[Group]()
        """Groups whose answers have all ended, for whoever takes them from here."""
        self._line = list[list[Answer]]()
        self._away = 0  # the first so many
        self._beside = costs.beside
        self._next: list[tuple[float, int, int]] = []  # a heap of ends: time, engine, its stamp

    @property
    def seconds(self) -> dict[str, float]:
        """Sum of the seconds of all engines."""
        self._touch(self.engines)
        states = {state for engine in self.engines for state in engine.seconds}
        return {state: sum(engine.seconds[state] for engine in self.engines) for state in states}

    def begin(self, group: Group) -> None:
        self._queue(group.answers)
        self._dispatch()

    def give_up(self, groups: Iterable[Group]) -> None:
        gone = set(groups)
        self._line = [answers for answers in self._line if answers[0].group not in gone]
        self._touch(self.engines, lambda engine: engine.take_out(lambda answer: answer.group in gone))
        self._dispatch()

    def run_until(self, is_ready: Callable[[], bool]) -> None:
        while not is_ready():
            count = len(self.ended)
            while len(self.ended) == count:
                end = self._next_end()
                if end == math.inf:
                    raise RuntimeError(f"at {self.now:.1f} s the simulated step waits for groups that never end")
                self._go_to(end)

    def spend(self, seconds: float) -> None:
        """Work of so many seconds alone. While engines sample, it and they get `1 / beside` of their speed."""
        if self._beside != 1:
            self._touch(self.engines, lambda engine: setattr(engine, "slowness", self._beside))
        while seconds > _NO_TIME:
            busy = sum(engine.is_busy for engine in self.engines) / len(self.engines)
            speed = 1 - busy * (1 - 1 / self._beside)
            passed = min(self._next_end() - self.now, seconds / speed)
            self._go_to(self.now + passed)
            seconds -= passed * speed
        if self._beside != 1:
            self._touch(self.engines, lambda engine: setattr(engine, "slowness", 1.0))

    def wait(self, seconds: float) -> None:
        """Time in which nobody works beside the engines."""
        self._go_to(self.now + seconds)

    def leave(self, count: int) -> None:
        """The first engines leave their devices. If all do, they stand still with what they are at."""
        self._away = count
        leaving = self.engines[:count]
        if count < len(self.engines):
            self._touch(leaving)
            for answer in [answer for engine in leaving for answer in engine.take_out()]:
                self._queue([answer])
        self._touch(leaving, lambda engine: setattr(engine, "stopped", "away"))
        self._dispatch()

    def come_back(self) -> None:
        away, self._away = self.engines[: self._away], 0
        self._touch(away, Engine.go_on)
        self._dispatch()

    def publish(self, work: Callable[[], None]) -> None:
        """Engines on their devices pause for the work, and continue with keys and values computed again."""
        here = self.engines[self._away :]
        self._touch(here, lambda engine: setattr(engine, "stopped", "held"))
        work()
        self._touch(here, Engine.go_on)

    def _queue(self, answers: list[Answer]) -> None:
        insort(self._line, answers, key=lambda each: each[0].group.number)

    def _dispatch(self) -> None:
        open_ones = self.engines[self._away :] or self.engines
        while self._line:
            engine = min(open_ones, key=lambda each: each.num_open)
            if self._away and not engine.has_slots:
                return
            for answer in self._line.pop(0):
                insort(engine.waiting, answer, key=lambda each: each.group.number)
            self._touch([engine], Engine.fill)

    def _touch(self, engines: Iterable[Engine], change: Callable[[Engine], object] = lambda engine: None) -> None:
        """Changes engines, which are brought to the present before, and looks for their next ends anew."""
        for engine in engines:
            engine.advance(self.now)
            change(engine)
            engine.stamp += 1
            if (end := engine.next_end()) < math.inf:
                heappush(self._next, (end, engine.rank, engine.stamp))

    def _next_end(self) -> float:
        while self._next and self._next[0][2] != self.engines[self._next[0][1]].stamp:
            heappop(self._next)
        return self._next[0][0] if self._next else math.inf

    def _go_to(self, moment: float) -> None:
        """Lets the time pass, with all that ends meanwhile."""
        while (end := self._next_end()) <= moment:
            self.now = max(self.now, end)
            engine = self.engines[heappop(self._next)[1]]
            engine.advance(self.now)
            for answer in engine.end_next():
                answer.group.open -= 1
                self.ended += [] if answer.group.open else [answer.group]
            self._touch([engine])
            self._dispatch()
        self.now = max(self.now, moment)
