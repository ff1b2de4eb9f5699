"""How long an answer's scoring may take, and which failures of it are worth another attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from roll.rewards.base import RewardOutcome
from roll.rewards.config import RewardConfig

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
        found = await self._scored(range(count), score_once)
        for retry in range(most):
            again = [place for place, outcome in enumerate(found) if outcome.may_pass]
            if not again:
                break
            await asyncio.sleep(min(_LONGEST_PAUSE_S, _PAUSE_S * 2**retry))
            for place, outcome in zip(again, await self._scored(again, score_once, retry + 1), strict=True):
                found[place] = outcome
        return found

    async def _scored(self, places: Sequence[int], score_once: ScoreOnce, retries: int = 0) -> list[RewardOutcome]:
        keys, limit = self._config, self.limit_s
        own = ({RETRIES: float(retries)} if keys.reward_retries else {}) | (
            {LIMIT: limit} if keys.dynamic_timeout.enable else {}
        )
        outcomes = await score_once(places)
        for outcome in outcomes:
            if outcome.failure is None:
                self._num_scored, self._total_s = self._num_scored + 1, self._total_s + outcome.seconds
        return [replace(outcome, metrics={**outcome.metrics, **own}) for outcome in outcomes] if own else outcomes


def may_pass(error: BaseException) -> bool:
    """True of connections that fail, of time-outs, and of servers that say so (408, 429, 5xx), also where they are the
    cause of another error. Whatever else a reward raises it would raise again."""
    return any(
        isinstance(each, ConnectionError | TimeoutError) or _status(each) in _TRY_AGAIN for each in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _status(error: BaseException) -> int | None:
    """HTTP status of an error, as the usual libraries store it; None if it has none."""
    with suppress(Exception):  # it is an object of the user's
        for said in (error, getattr(error, "response", None)):
            for name in ("status_code", "status", "code"):
                if isinstance(value := getattr(said, name, None), int):
                    return value
    return None
