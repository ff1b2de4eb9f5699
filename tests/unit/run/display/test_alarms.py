"""The warnings that rollout engine and trainer disagree."""

import logging
import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from roll.errors import StrategyError
from roll.rl.metrics import GAP_MAX, ExactAlarm, GapAlarm


def test_it_warns_when_the_difference_rises_above_the_threshold_and_not_again_before_it_fell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alarm = GapAlarm(0.05)
    warned = []
    with caplog.at_level(logging.WARNING):
        for difference in (0.01, 0.05, 0.06, 0.2, 0.04, 0.3):
            caplog.clear()
            alarm.check(difference)
            warned.append(len(caplog.records))
    assert warned == [0, 0, 1, 0, 0, 1]
    assert "log_prob_diff_mean is 0.3, above log_prob_diff_warning: 0.05" in caplog.text


@pytest.mark.parametrize(
    ("keeps_kv", "cause"), [(False, "compare their dtypes"), (True, "over keys and values of older weights")]
)
def test_where_old_keys_and_values_are_kept_the_warning_says_that_they_are_the_cause(
    keeps_kv: bool, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        GapAlarm(0.05, keeps_kv).check(0.07)
    assert cause in caplog.text and caplog.text.count("older weights") == keeps_kv


@pytest.mark.parametrize(
    ("runs_ahead", "engine_version", "stops"), [(False, 3, True), (True, 2, True), (False, 2, False)]
)
def test_exact_runs_end_with_the_first_number_that_differs(runs_ahead: bool, engine_version: int, stops: bool) -> None:
    """Without rollouts that run ahead, and with engines that are a step behind, all tokens are of other weights."""
    alarm, at = ExactAlarm(runs_ahead), SimpleNamespace(step=3, engine_version=engine_version)
    alarm.before_publish(at, {GAP_MAX: 0.0})  # type: ignore[arg-type]
    alarm.before_publish(at, {})  # type: ignore[arg-type]
    for wrong in (1e-9, math.nan):
        with (
            pytest.raises(StrategyError, match=f"exact_log_probs: {GAP_MAX} is .* in step 4")
            if stops
            else nullcontext()
        ):
            alarm.before_publish(at, {GAP_MAX: wrong})  # type: ignore[arg-type]
