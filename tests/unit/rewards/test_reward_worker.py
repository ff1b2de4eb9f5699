"""Failures are failures, never zeros; time limits really stop what runs."""

import asyncio
import gc
import math
import pickle
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.errors import RewardError
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.pipeline.rlvr.row_operators import data_domains
from roll.rewards.base import RewardInput, RewardOutcome, requires
from roll.rewards.config import RewardConfig
from roll.rewards.worker import RewardWorker
from tests.helpers.cases import cases
from tests.helpers.rewards import preflight

USER = "user_rewards"


@pytest.fixture(autouse=True)
def user_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def worker(reward: str, **settings: Any) -> RewardWorker:
    return RewardWorker("math", RewardConfig(reward=reward, **settings))


def ask(worker: RewardWorker, *responses: str, truth: object = None) -> list[RewardOutcome | None]:
    return worker.score([RewardInput("", response, truth) for response in responses])


def score(worker: RewardWorker, *responses: str, truth: object = None) -> list[RewardOutcome]:
    outcomes = [outcome for outcome in ask(worker, *responses, truth=truth) if outcome is not None]
    assert len(outcomes) == len(responses), "some were not judged"
    return outcomes


def test_rewards_of_any_kind_score_and_say_more() -> None:
    assert [o.score for o in score(worker(f"{USER}:length"), "ab", "abc")] == [2, 3]
    assert [o.score for o in score(worker(f"{USER}:length", reward_args={"scale": 0.5}), "ab")] == [1]
    assert sorted(o.score for o in score(worker(f"{USER}:Counter", reward_args={"start": 5}), "a", "b")) == [6, 7]
    built_in = worker("exact_match", reward_args={"pattern": "=(.)"})
    assert [o.score for o in score(built_in, "=1", "=2", truth="1")] == [1, 0]
    outcomes = score(worker(f"{USER}:by_name"), "bool", "int", "result", "other")
    assert [o.score for o in outcomes] == [1.0, 2.0, 0.5, 0.25]
    assert outcomes[2].metrics == {"m": 1.0} and outcomes[2].extra == {"x": "y"}
    assert all(o.failure is None for o in outcomes)
    (outcome,) = score(worker(f"{USER}:by_name"), "unsendable")
    outcome = pickle.loads(pickle.dumps(outcome))
    assert outcome.score == 0.5 and outcome.metrics == {"m\\ud800": 1.0}
    assert outcome.extra["file"].startswith("<_io.TextIOWrapper")
    assert outcome.extra["f"].startswith("<function")
    assert outcome.extra["odd"] == "(not recorded: a key is a tuple)"
    from roll.rewards.base import finite

    assert finite(np.float32(0.5)) == 0.5 and finite(np.array(2)) == 2
    assert finite(np.array([2.0])) is None and finite(np.nan) is None
    assert score(worker(f"{USER}:length")) == [] and score(worker(f"{USER}:Meeting")) == []


@cases("response, reason")
def test_what_is_no_score_is_a_failure_with_its_reason(response: str, reason: str) -> None:
    (outcome,) = score(worker(f"{USER}:by_name"), response)
    assert message(outcome) == reason and math.isnan(outcome.score)


def message(outcome: RewardOutcome | None) -> str | None:
    """The failure without the lines of code that led to it."""
    return None if outcome is None or outcome.failure is None else outcome.failure.partition("\n")[0]


def test_a_reward_that_raises_or_cannot_be_built_is_told() -> None:
    (outcome,) = score(worker(f"{USER}:escapes"), "panic")
    file = Path(__file__).with_name(f"{USER}.py")
    place = 1 + file.read_text().splitlines().index('            raise Panic("unwrap on None")')
    assert outcome.failure == f'Panic: unwrap on None\n  {file}:{place} in escapes: raise Panic("unwrap on None")'
    gated = worker(f"{USER}:by_name", format_pattern="<a>.*</a>", timeout_s=5)
    outcomes = score(gated, "raise", "<a>\n</a>", "<a></a>x")
    assert [(o.score, o.failure) for o in outcomes] == [(0, None), (0.25, None), (0, None)]
    with pytest.raises(RewardError, match="rewards.math: the reward cannot be built: OSError: no licence file"):
        worker(f"{USER}:Broken")
    with pytest.raises(RewardError, match="gives a Uncallable, which cannot be called"):
        worker(f"{USER}:Uncallable")


ESCAPES = {
    "interrupt": "KeyboardInterrupt: as Ctrl-C",
    "exit": "SystemExit: 3",
    "panic": "Panic: unwrap on None",
    "cancel": "CancelledError",
    "close": "GeneratorExit",
    "mute": "Mute: (its message cannot be made)",
    "odd": "SystemExit: looked at",
}


@pytest.mark.parametrize("reward", ["escapes", "escapes_async"])
def test_whatever_escapes_from_a_reward_is_the_failure_of_that_answer(reward: str) -> None:
    subject = worker(f"{USER}:{reward}")
    outcomes = score(subject, "a", *ESCAPES, "b")
    assert [message(o) for o in outcomes] == [None, *ESCAPES.values(), None]
    assert [o.score for o in score(subject, "c")] == [0.25]


def test_what_is_beside_a_score_may_be_nothing_and_else_fails_its_own_answer() -> None:
    subject = worker(f"{USER}:batched_results")
    nothing, nameless, good = score(subject, "nothing", "nameless", "m")
    assert (nothing.score, nothing.metrics, nothing.extra) == (1.0, {}, {})
    assert message(nameless) == "RuntimeError: no name"
    assert (good.score, good.metrics) == (1.0, {"m": 1.0})
    assert ask(subject, "list", "m") == [None, None]  # to be asked for one by one
    (wrong,) = score(subject, "list")
    assert wrong.failure is not None and "metrics must be a mapping of names to values, not [('a', 1)]" in wrong.failure


@pytest.mark.parametrize("response", ["spin", "sleep", "swallow", "backtrack"])
def test_a_call_over_its_time_is_stopped_and_the_next_one_scores(response: str) -> None:
    stopped, after = score(worker(f"{USER}:by_name", timeout_s=1.0), response, "other")
    assert stopped.failure == "took longer than timeout_s = 1" and 1 <= stopped.seconds < 600  # it would sleep so long
    assert after.score == 0.25


def test_outside_the_main_thread_a_call_over_its_time_is_left_behind_and_stops() -> None:
    limited = worker(f"{USER}:by_name", timeout_s=2.0)
    outcomes: list[RewardOutcome] = []
    before = set(threading.enumerate())
    thread = threading.Thread(target=lambda: outcomes.extend(score(limited, "spin", "raise", "other")))
    thread.start()
    thread.join(300)
    assert [message(o) for o in outcomes] == ["took longer than timeout_s = 2", "KeyError: 'no such thing'", None]
    deadline = time.monotonic() + 300
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == set()


def test_the_alarm_of_the_process_is_given_back() -> None:
    import signal

    previous = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        score(worker(f"{USER}:by_name", timeout_s=0.1), "spin")
        assert signal.getsignal(signal.SIGALRM) == signal.SIG_IGN
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_async_rewards_have_their_own_time_on_one_kind_of_loop() -> None:
    outcomes = score(worker(f"{USER}:Meeting", timeout_s=5), "meets", "meets", "alone", "meets", "x", "os_timeout")
    assert [o.score for o in outcomes if o.failure is None] == [3, 3, 3]
    assert outcomes[2].failure == "took longer than timeout_s = 5"
    assert message(outcomes[4]) == "KeyError: 'x'"
    assert message(outcomes[5]) == "TimeoutError: judge did not answer"
    limited = worker(f"{USER}:blocking", timeout_s=2.0)
    (blocked,) = score(limited, "block")
    assert blocked.failure is not None and blocked.failure.startswith("blocked the event loop for over 2 s")
    assert [o.score for o in score(limited, "a", "b")] == [1, 1]
    limited = worker(f"{USER}:blocking", timeout_s=4.0)
    outcomes = ask(limited, *["hold"] * 5)
    assert None in outcomes and not [outcome for outcome in outcomes if outcome is not None and outcome.failure]
    # SGLang's import sets that of uvloop, which ends otherwise when a task raises KeyboardInterrupt.
    asyncio.set_event_loop_policy(OtherLoops())
    try:
        assert [outcome.score for outcome in score(worker(f"{USER}:blocking", timeout_s=9), "waits")] == [1]
    finally:
        asyncio.set_event_loop_policy(None)


class OtherLoops(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        raise AssertionError("the loop of the policy was made")


def test_a_loop_that_was_interrupted_leaves_no_tasks_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Python logs each that it finds pending when it cleans up; its traceback is written amid whatever runs then."""
    gc.collect()  # what other tests of this process left
    caplog.clear()
    subject = worker(f"{USER}:escapes_in_a_task")
    assert ask(subject, "a", "interrupt") == [None, None]
    assert ask(subject, "a")[0] is not None  # on a loop of its own
    gc.collect()
    assert caplog.records == []


def test_of_answers_that_share_a_loop_those_that_another_one_stopped_are_not_judged() -> None:
    """They lost their time to it: to be asked for again, alone."""
    limited = worker(f"{USER}:blocking", timeout_s=4.0)
    quick, *others = ask(limited, "quick", "waits", "block", "waits", "block")
    assert quick is not None and quick.score == 1 and others == [None] * 4
    assert [score(limited, text)[0].score for text in ("waits", "hold")] == [1, 1]
    assert "blocked the event loop" in str(score(limited, "block")[0].failure)
    subject = worker(f"{USER}:escapes_in_a_task")
    assert ask(subject, "a", "interrupt") == [None, None]  # whose task it was is not known
    assert [message(score(subject, text)[0]) for text in ("a", "interrupt")] == [None, "KeyboardInterrupt: as Ctrl-C"]
    assert [message(score(subject, text)[0]) for text in ("exit", "b")] == ["SystemExit: 3", None]


@pytest.mark.parametrize("reward", ["by_name", "blocking"])
def test_a_pattern_that_takes_for_ever_is_the_failure_of_the_answer_that_it_is_matched_with(reward: str) -> None:
    gated = worker(f"{USER}:{reward}", format_pattern="(x+)+y|good|bad", timeout_s=2.0)
    good, endless, other = score(gated, "good", "x" * 60, "none")
    assert (good.failure, other.failure, other.score) == (None, None, 0)
    assert endless.failure == "took longer than timeout_s = 2"


@cases("settings, message")
def test_preflight_names_the_key_of_what_is_wrong(settings: dict[str, Any], message: str) -> None:
    config = RLVRConfig.model_construct(rewards={"math": RewardConfig(**settings)})
    (problem,) = preflight(config)
    assert problem.startswith("rewards.math.")
    with pytest.raises(AssertionError, match=f"rewards.math.{message}"):
        raise AssertionError(problem)


def test_preflight_is_content_with_good_rewards_and_does_not_import_math_verify() -> None:
    import subprocess

    good = {
        "a": RewardConfig(reward=f"{USER}:length", reward_args={"scale": 2}),
        "b": RewardConfig(reward=f"{USER}:Counter", reward_args={"start": 1}),
        "c": RewardConfig(reward="regex", reward_args={"pattern": ".*"}, format_pattern="a|b"),
    }
    assert preflight(RLVRConfig.model_construct(rewards=good)) == []
    code = (
        "import sys; from roll.pipeline.rlvr.reward_checks import *; "
        "assert not list(code_problems(RLVRConfig.model_construct(rewards={'m': RewardConfig(reward='math_rule')}))); "
        "print([m for m in ('torch', 'sympy', 'math_verify', 'ray') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def reading(sample: RewardInput) -> float:
    return float(sample.ground_truth in sample.response_text)


@requires("unit_tests")
class Declared:
    def __call__(self, sample: RewardInput) -> float:
        return float(sample.ground_truth is None)


class Undeclared:
    def __call__(self, sample: RewardInput) -> float:
        return float(sample.payload["tests"] == sample.ground_truth)


def blind(sample: RewardInput) -> float:
    return float(len(sample.response_text))


@pytest.mark.parametrize(
    ("reward", "required", "some"),
    [
        ("math_rule", ("ground_truth",), False),
        ("exact_match", ("ground_truth",), False),
        ("regex", (), False),
        (f"{__name__}:reading", (), True),
        (f"{__name__}:Undeclared", (), True),
        (f"{__name__}:blind", (), False),
        (f"{__name__}:Declared", ("unit_tests",), False),
    ],
)
def test_the_data_must_have_what_a_reward_declares_or_else_reads(
    reward: str, required: tuple[str, ...], some: bool
) -> None:
    (domain,) = data_domains(RLVRConfig.model_construct(rewards={"own": RewardConfig(reward=reward)}))
    assert (domain.required, domain.some_ground_truth) == (required, some)


def test_a_limit_of_the_call_holds_for_that_call_alone() -> None:
    subject = worker(f"{USER}:by_name", timeout_s=30.0)
    (late,) = subject.score([RewardInput("", "sleep")], timeout_s=0.1)
    assert late is not None and late.may_pass
    assert late.failure == "took longer than the 0.1 s that dynamic_timeout gives"
    assert [o.score for o in score(subject, "int")] == [2.0]
    (late,) = score(worker(f"{USER}:by_name", timeout_s=0.1), "sleep")
    assert late.failure == "took longer than timeout_s = 0.1" and late.may_pass
    outcomes = score(worker(f"{USER}:by_name"), "os_timeout", "raise")
    assert [o.may_pass for o in outcomes] == [True, False]
    subject = worker(f"{USER}:Meeting", timeout_s=30.0)
    outcomes = subject.score([RewardInput("", "alone"), RewardInput("", "alone")], timeout_s=0.1)
    assert [outcome and outcome.failure for outcome in outcomes] == [
        "took longer than the 0.1 s that dynamic_timeout gives"
    ] * 2
