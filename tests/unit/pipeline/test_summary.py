import math

import pytest

from roll.pipeline.summary import duration, series, summarise, summary_lines

ROWS = [
    (0, {"rollout/reward_mean": 0.1, "val/reward_mean": 0.2, "time/rollout_s": 2.0, "time/train_actor_s": 1.0}),
    (1, {"rollout/reward_mean": math.nan, "val/reward_mean": 0.9, "time/rollout_s": 4.0, "time/rollout/reward_s": 1.0}),
    (2, {"rollout/reward_mean": 0.7, "time/step_s": 9.0}),
    (3, {"val/reward_mean": 0.8}),
]


def test_summary_holds_first_last_best_and_the_seconds_of_top_level_phases():
    summary = summarise(ROWS)
    assert (summary.num_steps, summary.reward_first, summary.reward_last) == (2, 0.1, 0.7)
    assert (summary.validation_start, summary.validation_end) == (0.2, 0.8)
    assert (summary.validation_best, summary.validation_best_step) == (0.9, 1)
    assert summary.seconds_by_phase == {"rollout": 6.0, "train_actor": 1.0}
    assert summary.seconds == 7.0


def test_summary_lines_read_as_a_person_wants_them():
    assert summary_lines(summarise(ROWS), {"curves": "out/curves.png"}) == [
        "2 steps in 7.00 s",
        "reward       first 0.100   last 0.700",
        "validation   start 0.200   end 0.800   best 0.900 at step 1",
        "time         rollout             6.00 s   86%",
        "             train_actor         1.00 s   14%",
        "curves       out/curves.png",
    ]


def test_a_run_that_never_stepped_has_a_summary_too():
    assert summary_lines(summarise([]), {}) == ["0 steps in 0.00 s"]


def test_series_leaves_out_nan_and_absent_values():
    assert series(ROWS, "rollout/reward_mean") == [(0, 0.1), (2, 0.7)]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.42, "0.42 s"), (42, "42.0 s"), (75, "1 m 15 s"), (59.99, "60.0 s"), (7380, "2 h 03 m")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text
