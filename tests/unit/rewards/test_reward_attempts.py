"""Which failures of a reward get another attempt, and how long an answer's scoring may take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from roll.errors import WorkerError
from roll.rewards import worker as reward_attempts
from roll.rewards.base import RewardInput, RewardOutcome
from roll.rewards.config import RewardConfig
from roll.rewards.service import RewardPools
from roll.rewards.worker import Attempts, may_pass


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_attempts, "_PAUSE_S", 0.0)


class HttpError(Exception):
    def __init__(self, status: int):
        self.status_code = status


class Replied(Exception):
    """As requests and httpx have it: the status is that of the reply."""

    def __init__(self, status: int):
        self.response = HttpError(status)


class Broken(Exception):
    @property
    def response(self) -> object:
        raise KeyError("response")


def caused(cause: BaseException, hidden: bool = False) -> BaseException:
    try:
        try:
            raise cause
        except BaseException as error:
            raise ValueError("no score") from (None if hidden else error)
    except ValueError as error:
        return error


def test_connections_time_outs_and_servers_in_trouble_may_pass_and_nothing_else() -> None:
    passing = [ConnectionResetError(), TimeoutError(), HttpError(503), HttpError(429), Replied(500)]
    assert all(may_pass(error) and may_pass(caused(error)) for error in passing)
    lasting = [
        ValueError("x"),
        KeyError("x"),
        FileNotFoundError(),
        HttpError(400),
        Replied(404),
        Broken(),
        SystemExit(1),
    ]
    assert not any(may_pass(error) or may_pass(caused(error)) for error in lasting)
    assert not may_pass(caused(ConnectionResetError(), hidden=True)), "who hides the cause speaks for it"


def test_the_limit_follows_the_mean_of_what_was_scored_between_floor_and_timeout() -> None:
    keys = {"enable": True, "ratio": 3, "min_s": 1}
    limits = {}
    for seconds in (0.1, 2.0, 20.0):
        attempts = Attempts(RewardConfig(timeout_s=30, dynamic_timeout=keys))  # type: ignore[arg-type]
        scored = [RewardOutcome(1.0, seconds=seconds)] * 8
        assert attempts.limit_s == 30
        for _ in range(2):
            assert attempts.limit_s == 30, "a few say little"
            mixed = [*scored, RewardOutcome.failed("late", 25.0)]
            asyncio.run(attempts.outcomes(9, lambda _, mixed=mixed: _now(mixed)))
        assert attempts.mean_s == pytest.approx(seconds), "of what failed nothing counts"
        limits[seconds] = attempts.limit_s
    assert limits == pytest.approx({0.1: 1.0, 2.0: 6.0, 20.0: 30.0})
    off = Attempts(RewardConfig(timeout_s=30))
    asyncio.run(off.outcomes(8, lambda _: _now([RewardOutcome(1.0, seconds=0.1)] * 20)))
    assert off.limit_s == 30


async def _now(outcomes: list[RewardOutcome]) -> list[RewardOutcome]:
    return list(outcomes)


class Pool:
    """A pool whose calls end as they are told: by the text of the answer, the next of its replies."""

    def __init__(self, replies: dict[str, list[Any]]):
        self.replies = replies
        self.calls: list[tuple[list[str], float, float]] = []

    def start_pool(self, *arguments: object) -> Pool:
        return self

    async def call(self, method: str, inputs: Sequence[RewardInput], *rest: Any, timeout_s: float) -> list[Any]:
        self.calls.append(([sample.response_text for sample in inputs], rest[2], timeout_s))
        return [self.replies[sample.response_text].pop(0) for sample in inputs]

    async def call_each(self, method: str, arguments: Sequence[tuple[Any, ...]], timeout_s: float) -> list[Any]:
        replies = []
        for (sample,), _, _, seconds in arguments:
            self.calls.append(([sample.response_text], seconds, timeout_s))
            reply = self.replies[sample.response_text].pop(0)
            replies.append(reply if isinstance(reply, Exception) else [reply])
        return replies


def pools(replies: dict[str, list[Any]], **settings: Any) -> tuple[RewardPools, Pool]:
    pool = Pool(replies)
    return RewardPools(pool, {"math": RewardConfig(reward="exact_match", **settings)}), pool  # type: ignore[arg-type]


def ask(rewards: RewardPools, *texts: str) -> list[RewardOutcome]:
    return asyncio.run(rewards.score("math", [RewardInput("", text) for text in texts]))


def test_an_answer_whose_process_died_or_hung_is_scored_again_and_one_whose_reward_failed_is_not() -> None:
    fine, wrong = RewardOutcome(1.0), RewardOutcome.failed("ValueError: x")
    rewards, pool = pools(
        {
            "fine": [fine],
            "died": [WorkerError("died"), fine],
            "hangs": [TimeoutError(), TimeoutError(), TimeoutError()],
            "late": [RewardOutcome.failed("took longer", may_pass=True), WorkerError("died"), fine],
            "wrong": [wrong],
        },
        reward_retries=2,
    )
    outcomes = dict(zip(pool.replies, ask(rewards, *pool.replies), strict=True))
    assert [outcomes[name].score for name in ("fine", "died", "late")] == [1.0] * 3
    assert outcomes["hangs"].failure == "the reward hung and its process was stopped"
    assert outcomes["wrong"].failure == "ValueError: x"
    retries = {name: outcome.metrics["reward_retries"] for name, outcome in outcomes.items()}
    assert retries == {"fine": 0, "died": 1, "hangs": 2, "late": 2, "wrong": 0}
    assert not any(pool.replies.values())


def test_without_retries_a_failure_is_final_and_nothing_is_reported() -> None:
    rewards, pool = pools({"died": [WorkerError("died")]})
    (outcome,) = ask(rewards, "died")
    assert outcome.failure == "died" and outcome.metrics == {}
    assert [texts for texts, _, _ in pool.calls] == [["died"]]


def test_answers_are_asked_for_under_the_limit_of_the_moment() -> None:
    settings = {"timeout_s": 30.0, "dynamic_timeout": {"enable": True, "ratio": 2.0}}
    rewards, pool = pools({"a": [RewardOutcome(1.0, seconds=3.0)] * 17}, **settings)
    outcomes = [ask(rewards, "a")[0] for _ in range(17)]
    assert [seconds for _, seconds, _ in pool.calls] == [30.0] * 16 + [6.0]
    assert [limit for _, _, limit in pool.calls] == [35.0] * 16 + [11.0], "of the pool, beyond that of the worker"
    assert outcomes[-1].metrics == {"reward_timeout_s": 6.0}


def test_slow_rewards_are_asked_for_each_answer_and_quick_ones_for_a_group() -> None:
    rewards, pool = pools({"a": [RewardOutcome(1.0, seconds=0.5), RewardOutcome(1.0, seconds=0.001)]})
    assert rewards.scores_alone("math"), "until it is known"
    ask(rewards, "a")
    assert rewards.scores_alone("math")
    pool.replies["b"] = [RewardOutcome(1.0, seconds=0.001)] * 99
    ask(rewards, *["b"] * 99)
    assert not rewards.scores_alone("math")
