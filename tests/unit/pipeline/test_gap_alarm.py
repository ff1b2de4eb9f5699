"""The warning that rollout engine and trainer disagree."""

import logging

import pytest

from roll.pipeline.base_pipeline import GapAlarm


def test_it_warns_when_the_difference_rises_above_the_threshold_and_not_again_before_it_fell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alarm = GapAlarm(0.05)
    warned = []
    with caplog.at_level(logging.WARNING):
        for difference in (0.01, 0.05, 0.06, 0.2, 0.04, 0.3):
            caplog.clear()
            alarm.look(difference)
            warned.append(len(caplog.records))
    assert warned == [0, 0, 1, 0, 0, 1]
    assert "log_prob_diff_mean is 0.3, above log_prob_diff_warning: 0.05" in caplog.text
