"""Scores the answers of one domain in one process. Whatever the user's reward does, the outcome says it."""

import asyncio
import inspect
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

from roll.configs.base import LARGEST_REWARD
from roll.errors import RewardError
from roll.rewards.base import BatchReward, Reward, RewardInput, RewardOutcome, RewardResult, Score, finite, has_form
from roll.rewards.chain import scores_of
from roll.rewards.config import RewardConfig
from roll.rewards.table import build_reward, is_async, takes_batch
from roll.types.group_codec import TextTable
from roll.utils.imports import traced
from roll.utils.json_values import plain_fields
from roll.utils.text import visible
from roll.utils.timing import TimeLimitReached, call_within

# How long an answer's scoring may take, and which failures of it are worth another attempt.

_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0  # before the second attempt, doubled before each that follows
_FEW = 16  # answers whose mean says little
_TRY_AGAIN = frozenset({408, 429, *range(500, 600)})  # what a server says of a moment, not of the request
RETRIES, LIMIT = "reward_retries", "reward_timeout_s"  # metrics of an answer

ScoreOnce = Callable[[Sequence[int]], Awaitable[list[RewardOutcome]]]


class Attempts:
    """The attempts at the answers of one domain."""

    def __init__(self, config: RewardConfig):
        self._config = config
        self._num_scored, self._total_s = 0, 0.0

    @property
    def mean_s(self) -> float | None:
        """Mean seconds of the responses that got a reward so far; None without any."""
        return self._total_s / self._num_scored if self._num_scored else None

    @property
    def limit_s(self) -> float:
        """Example: timeout_s 30 and dynamic_timeout {enable: true, ratio: 3, min_s: 1}: a mean of 2 s gives 6, one of
        .1 s gives 1, one of 20 s gives 30. Before there are a few: 30."""
        most, keys = self._config.timeout_s, self._config.dynamic_timeout
        if not keys.enable or self._num_scored < _FEW or self.mean_s is None:
            return most
        return min(most, max(keys.min_s, keys.ratio * self.mean_s))

    async def outcomes(self, count: int, score_once: ScoreOnce) -> list[RewardOutcome]:
        """Outcomes of `count` responses. `score_once` gets the places to score. Failures that may be temporary are
        scored again."""
        most = self._config.reward_retries
        outcomes = await self._scored(range(count), score_once)
        for retry in range(most):
            again = [place for place, outcome in enumerate(outcomes) if outcome.may_pass]
            if not again:
                break
            await asyncio.sleep(min(_LONGEST_PAUSE_S, _PAUSE_S * 2**retry))
            for place, outcome in zip(again, await self._scored(again, score_once, retry + 1), strict=True):
                outcomes[place] = outcome
        return outcomes

    async def _scored(self, places: Sequence[int], score_once: ScoreOnce, retries: int = 0) -> list[RewardOutcome]:
        keys, limit = self._config, self.limit_s
        shared_metrics = ({RETRIES: float(retries)} if keys.reward_retries else {}) | (
            {LIMIT: limit} if keys.dynamic_timeout.enable else {}
        )
        outcomes = await score_once(places)
        for outcome in outcomes:
            if outcome.failure is None:
                self._num_scored, self._total_s = self._num_scored + 1, self._total_s + outcome.seconds
        return (
            [replace(outcome, metrics={**outcome.metrics, **shared_metrics}) for outcome in outcomes]
            if shared_metrics
            else outcomes
        )


def may_pass(error: BaseException) -> bool:
    """True of connections that fail, of time-outs, and of servers that say so (408, 429, 5xx), also where they are the
    cause of another error. Whatever else a reward raises it would raise again."""
    return any(
        isinstance(each, ConnectionError | TimeoutError) or _status(each) in _TRY_AGAIN for each in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _status(error: BaseException) -> int | None:
    with suppress(Exception):  # it is an object of the user's
        for said in (error, getattr(error, "response", None)):
            for name in ("status_code", "status", "code"):
                if isinstance(value := getattr(said, name, None), int):
                    return value
    return None


LOOP_GRACE_S = 1.0  # an async reward has this long to give way after its time is over


class RewardWorker:
    """Built where the scoring happens. Raises RewardError when the reward cannot be built.

    A sync reward scores answer by answer; one that takes a batch, or is async, all answers of a call at once. Call it
    from the main thread of a process: only there a wait or a busy loop can be interrupted at once. What even an alarm
    cannot stop is the caller's to kill.
    """

    def __init__(self, domain: str, config: RewardConfig):
        self._timeout_s = self._most_s = config.timeout_s
        self._format = None if config.format_pattern is None else re.compile(config.format_pattern, re.DOTALL)
        try:
            self._reward = build_reward(config)
        except BaseException as error:
            raise RewardError(f"rewards.{domain}: the reward cannot be built: {traced(error)}") from error
        self._is_async, self._takes_batch = is_async(self._reward), takes_batch(self._reward)
        self._loop: asyncio.Runner | None = None
        self._alone = True  # the answer that is judged on the event loop has it for itself
        self._was_blocked = False  # the event loop, by an answer of the present call

    def score(
        self,
        inputs: Sequence[RewardInput],
        rows: Sequence[int] = (),
        texts: TextTable | None = None,
        timeout_s: float | None = None,
    ) -> list[RewardOutcome | None]:
        """One outcome per input, in their order. None where an answer was not judged, since one of those that it shares
        a loop or a batch with stopped it: ask for it alone, which shows who did. The text of input i is
        `texts[rows[i]]`, if it came apart from it. `timeout_s`: for each, instead of that of the settings."""
        self._timeout_s = timeout_s or self._most_s
        if texts is not None:
            said = [texts[row] for row in rows]
            inputs = [
                replace(sample, response_text=text.response_text, raw_text=text.raw_text)
                for sample, text in zip(inputs, said, strict=True)
            ]
        if self._is_async:
            return self._score_together(inputs)
        if self._takes_batch:
            return self._score_batch(inputs)
        return [self._score_one(sample) for sample in inputs]

    def _score_one(self, sample: RewardInput) -> RewardOutcome:
        started = time.monotonic()
        try:
            return call_within(self._timeout_s, lambda: self._judge(sample, started))
        except TimeLimitReached:
            return self._timed_out(started)
        except BaseException as error:  # a judge that exits, a panic in Rust
            return failed(error, started)

    def _judge(self, sample: RewardInput, started: float) -> RewardOutcome:
        returned = cast(Reward, self._reward)(sample) if self._well_formed(sample) else 0.0
        return outcome_of(returned, time.monotonic() - started)

    def _score_batch(self, inputs: Sequence[RewardInput]) -> list[RewardOutcome | None]:
        outcomes = [self._format_outcome(sample) for sample in inputs]
        unjudged = [index for index, outcome in enumerate(outcomes) if outcome is None]
        if not unjudged:
            return outcomes
        started = time.monotonic()
        try:
            judge, asked = cast(BatchReward, self._reward), [inputs[i] for i in unjudged]
            limit_s = self._timeout_s * len(asked)
            scores = call_within(limit_s, lambda: scores_of("the reward", judge(asked), len(asked)))
        except BaseException as error:
            if len(unjudged) == 1:
                is_late = isinstance(error, TimeLimitReached)
                outcomes[unjudged[0]] = self._timed_out(started) if is_late else failed(error, started)
            return outcomes
        seconds = (time.monotonic() - started) / len(unjudged)
        for index, score in zip(unjudged, scores, strict=True):
            try:
                outcomes[index] = outcome_of(score, seconds)
            except Exception as error:  # of the user's objects, when they are looked at
                outcomes[index] = failed(error, started)
        return outcomes

    def _score_together(self, inputs: Sequence[RewardInput]) -> list[RewardOutcome | None]:
        """One event loop lives as long as the worker: the user's connections belong to it."""
        judged = [self._format_outcome(sample) for sample in inputs]
        unjudged = [index for index, outcome in enumerate(judged) if outcome is None]
        self._alone, self._was_blocked = len(unjudged) == 1, False
        stopped_by: BaseException | None = None
        started = time.monotonic()

        async def score_all() -> None:
            async def score(index: int) -> None:
                judged[index] = await self._await_one(inputs[index])

            await asyncio.gather(*(score(index) for index in unjudged))

        outcomes = judged
        if self._loop is None:
            # not the loop of the process's policy, which a library may set: uvloop goes on past a KeyboardInterrupt
            self._loop = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        try:
            call_within(self._timeout_s + LOOP_GRACE_S, lambda: cast(asyncio.Runner, self._loop).run(score_all()))
        except BaseException as error:  # the alarm, or what a task of the reward's own let through
            outcomes, stopped_by = list(judged), error
            # Interrupted in the middle, the loop is not used again, and its tasks end with it: Python would tell of
            # those that are left whenever it cleans up memory, in the middle of anything.
            loop, self._loop = cast(asyncio.Runner, self._loop), None
            with suppress(BaseException):  # of a task that goes on all the same, or that nobody can stop
                call_within(LOOP_GRACE_S, loop.close)
        if not self._alone and (stopped_by is not None or self._was_blocked):
            return outcomes  # who is open yet may have lost its time to another one
        if stopped_by is not None and not isinstance(stopped_by, TimeLimitReached):
            return [outcome or failed(stopped_by, started) for outcome in outcomes]
        return [outcome or self._timed_out(started) for outcome in outcomes]

    async def _await_one(self, sample: RewardInput) -> RewardOutcome | None:
        """None if its time ran out, or if somebody blocked the loop that it shares: of several that hold it for a while
        each, the alarm may hit any."""
        if self._was_blocked:
            return None
        started = time.monotonic()
        limit = asyncio.timeout(self._timeout_s)
        try:
            call = cast(Callable[[RewardInput], Awaitable[Score]], self._reward)
            async with limit:
                returned = await call(sample)
                outcome = outcome_of(returned, time.monotonic() - started)
        except TimeLimitReached:  # it never gave way, and the alarm hit it
            self._was_blocked = True
            if not self._alone:
                return None
            return RewardOutcome.failed(
                f"blocked the event loop for over {self._timeout_s:g} s; await what takes long, or make the reward a "
                "plain function",
                time.monotonic() - started,
                may_pass=True,
            )
        except BaseException as error:
            if isinstance(error, TimeoutError) and limit.expired():  # not the user's own
                return None
            return failed(error, started)
        return None if limit.expired() else outcome

    def _format_outcome(self, sample: RewardInput) -> RewardOutcome | None:
        """0 for an answer that is not of the format, None for one that is to be scored."""
        started = time.monotonic()
        try:
            well_formed = call_within(self._timeout_s, lambda: self._well_formed(sample))
        except TimeLimitReached:
            return self._timed_out(started)
        return None if well_formed else outcome_of(0.0, time.monotonic() - started)

    def _well_formed(self, sample: RewardInput) -> bool:
        return self._format is None or has_form(self._format.fullmatch, self._format.pattern, sample.response_text)

    def _timed_out(self, started: float) -> RewardOutcome:
        return timed_out(self._timeout_s, self._most_s, started)


def outcome_of(returned: object, seconds: float) -> RewardOutcome:
    """Convert the return value of a reward to an outcome: anything but a finite number, plain or in a RewardResult, is
    a failure."""
    result = returned if isinstance(returned, RewardResult) else RewardResult(cast(float, returned))
    score = finite(result.score)
    if score is None:
        if inspect.isawaitable(returned):
            return RewardOutcome.failed("returned an awaitable: declare the reward with async def", seconds)
        return RewardOutcome.failed(f"returned {repr(result.score)[:300]}, not a finite number", seconds)
    if abs(score) > LARGEST_REWARD:
        return RewardOutcome.failed(f"returned {score:g}, which is too large for float32", seconds)
    numbers_found = ((visible(str(name)), finite(value)) for name, value in result.metrics.items())
    metrics = {name: number for name, number in numbers_found if number is not None}
    return RewardOutcome(score, metrics=metrics, extra=plain_fields(result.extra), seconds=seconds)


def failed(error: BaseException, started: float) -> RewardOutcome:
    return RewardOutcome.failed(traced(error, 300), time.monotonic() - started, may_pass(error))


def timed_out(limit_s: float, most_s: float, started: float) -> RewardOutcome:
    """Failed outcome of a response that had `limit_s` seconds. `most_s` is the limit in the settings."""
    said = f"timeout_s = {limit_s:g}" if limit_s == most_s else f"the {limit_s:.3g} s that dynamic_timeout gives"
    return RewardOutcome.failed(f"took longer than {said}", time.monotonic() - started, may_pass=True)
