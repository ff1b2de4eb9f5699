"""Whose doing an early end is: the machine's before the answer runs, the answer's later."""

import pytest

from roll.rewards.code.cases import Tally
from roll.rewards.code.local import Starts
from roll.utils.sandbox.process import SandboxError


def begun() -> Starts:
    starts = Starts()
    starts.start()
    starts.begun()
    return starts


def test_an_end_before_the_answer_ran_is_asked_again_and_then_no_verdict() -> None:
    starts, tally = Starts(), Tally(2)
    for _ in range(2):
        starts.start()
        assert starts.ended(tally, "no memory") and tally.shares == []
    with pytest.raises(SandboxError, match="before anything of the answer ran: no memory"):
        starts.ended(tally, "no memory")


def test_a_start_that_works_forgives_those_before() -> None:
    starts, tally = Starts(), Tally(9)
    for _ in range(5):
        starts.start()
        assert starts.ended(tally, "no memory")
        starts.begun()


def test_an_end_while_the_answer_is_loaded_is_asked_once_more_and_then_a_zero() -> None:
    starts, tally = begun(), Tally(2)
    assert starts.ended(tally, "code 0") and tally.compiled
    starts.start()
    starts.begun()
    assert starts.ended(tally, "code 0")
    assert (tally.shares, tally.compiled) == ([0, 0], False)


def test_an_end_in_a_case_is_that_case_s() -> None:
    starts, tally = begun(), Tally(2)
    starts.loaded()
    assert not starts.ended(tally, "code 0") and not starts.out_of_time(tally, budget_is_spent=False)
    assert tally.shares == []


def test_a_late_start_after_the_answer_used_its_time_is_no_failure() -> None:
    starts, tally = begun(), Tally(2)
    for _ in range(5):
        starts.start()
        assert not starts.out_of_time(tally, budget_is_spent=True)
    starts.check_begun()


def test_time_that_is_over_before_anything_ran_is_no_verdict() -> None:
    with pytest.raises(SandboxError, match="did not start within total_time_s"):
        Starts().check_begun()


def test_loading_without_end_is_a_zero() -> None:
    starts, tally = begun(), Tally(2)
    assert starts.out_of_time(tally, budget_is_spent=False)
    assert (tally.shares, tally.compiled, tally.out_of_time) == ([0, 0], False, 1)
