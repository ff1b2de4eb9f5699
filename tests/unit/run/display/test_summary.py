"""The summary of a run."""

import math

import pytest

from roll.rl.pipeline import VIEW
from roll.run.display.view import duration, series, summarise, summary_lines

ROWS = [
    (0, {"rollout/reward_mean": 0.1, "val/reward_mean": 0.2, "time/rollout_s": 2.0, "time/train_actor_s": 1.0}),
    (1, {"rollout/reward_mean": math.nan, "val/reward_mean": 0.9, "time/rollout_s": 4.0, "time/rollout/reward_s": 1.0}),
    (2, {"rollout/reward_mean": 0.7, "time/step_s": 9.0}),
    (3, {"val/reward_mean": 0.8}),
]


def test_summary_holds_first_last_best_and_the_seconds_of_top_level_phases():
    assert summarise(ROWS, VIEW).as_dict() == {
        "num_steps": 2,
        "reward_first": 0.1,
        "reward_last": 0.7,
        "validation_start": 0.2,
        "validation_end": 0.8,
        "validation_best": 0.9,
        "validation_best_step": 1,
        "seconds": 7.0,
        "seconds_by_phase": {"rollout": 6.0, "train_actor": 1.0},
    }


def test_summary_lines_read_as_a_person_wants_them():
    assert summary_lines(summarise(ROWS, VIEW), {"output": "out/run"}) == [
        "2 steps in 7.00 s",
        "reward       first 0.100   last 0.700",
        "validation   start 0.200   end 0.800   best 0.900 at step 1",
        "time         rollout             6.00 s   86%",
        "             train_actor         1.00 s   14%",
        "output       out/run",
    ]


def test_runs_are_summed_up_by_their_ends() -> None:
    assert summary_lines(summarise([], VIEW), {}) == []
    assert series(ROWS, "rollout/reward_mean") == [(0, 0.1), (2, 0.7)]
    rows = [(step, {"rollout/reward_mean": float(step % 2 + step // 20)}) for step in range(40)]
    summary = summarise(rows, VIEW)
    assert summary.training == {"first": 0.5, "last": 1.5}
    assert summary_lines(summary, {})[1] == "reward       first 0.500   last 1.500   (means of 4 steps each)"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.42, "0.42 s"), (42, "42.0 s"), (75, "1 m 15 s"), (59.99, "60.0 s"), (7380, "2 h 03 m")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text
