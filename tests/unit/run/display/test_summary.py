"""The summary of a run and the titles of its metrics."""

import math
import re

import pytest

from roll.rl.pipeline import VIEW
from roll.run.display.palette import BAD, GOOD, RUN_COLORS, phase_colors
from roll.run.display.titles import _TITLES, number_text, phase_title, title_of
from roll.run.display.view import Curve, View, duration, series, summarise, summary_lines
from tests.helpers.cases import cases
from tests.layout.source import REPOSITORY

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


def test_a_run_of_another_kind_has_curves_of_its_own():
    """Of a loss the lowest value is the best."""
    view = View((), Curve("loss", "train/loss", "loss"), Curve("validation", "val/loss", "loss", best="lowest"))
    rows = [
        (1, {"train/loss": 2.0, "val/loss": 3.0}),
        (2, {"train/loss": 1.0, "val/loss": 1.5}),
        (3, {"val/loss": 2.0}),
    ]
    assert summary_lines(summarise(rows, view), {}) == [
        "2 steps in 0.00 s",
        "loss         first 2.000   last 1.000",
        "validation   start 3.000   end 2.000   best 1.500 at step 2",
    ]
    assert summarise(rows[:0], view).as_dict()["loss_first"] is None


def test_summary_lines_read_as_a_person_wants_them():
    assert summary_lines(summarise(ROWS, VIEW), {"curves": "out/curves.png"}) == [
        "2 steps in 7.00 s",
        "reward       first 0.100   last 0.700",
        "validation   start 0.200   end 0.800   best 0.900 at step 1",
        "time         rollout             6.00 s   86%",
        "             train_actor         1.00 s   14%",
        "curves       out/curves.png",
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


@cases("metric, title")
def test_usual_metrics_have_titles_and_others_their_names(metric: str, title: str) -> None:
    assert title_of(metric) == title


def test_every_title_is_of_a_metric_that_the_table_of_metrics_lists() -> None:
    names = set(re.findall(r"`([^`]+)`", (REPOSITORY / "docs" / "metrics.md").read_text()))
    quantities = {name.rpartition("/")[2] for name in names}
    assert {
        metric for metric in _TITLES if metric not in names and metric.rpartition("/")[2] not in quantities
    } == set()
    assert len(set(_TITLES.values())) > 0.9 * len(_TITLES), "few metrics share a title"


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0078125, "0.008"), (0.9141, "0.914"), (12.345, "12.3"), (4831.2, "4,831"), (1e-6, "1e-6"), (3.0, "3"),
        (0.0, "0"), (-0.5, "-0.500"), (2.961e-07, "2.96e-7"), (1.5e9, "1.5e9"), (1e10, "1e10"), (1.25, "1.25"),
        (0.00099999, "1e-3"), (99.97, "100.0"), (-4831.0, "-4,831"),
        (float("nan"), "nan"), (float("-inf"), "-inf"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_a_person_would(value: float, text: str) -> None:
    assert number_text(value) == text


def test_phases_have_their_colours_in_every_chart_and_share_none_with_runs_or_verdicts() -> None:
    names = ["rollout", "mine", "train_actor", "yours", "other"]
    colors = phase_colors(names)
    assert len(set(colors.values())) == 5
    assert phase_colors(["other", "rollout"]) == {"other": colors["other"], "rollout": colors["rollout"]}
    many = phase_colors([*names, *map(str, range(30))])
    assert not {*many.values()} & {*RUN_COLORS, GOOD, BAD}
    assert not {*RUN_COLORS} & {GOOD, BAD} and len({*RUN_COLORS}) == 8
    assert phase_title("weight_sync") == "publish weights" and phase_title("mine") == "mine"
