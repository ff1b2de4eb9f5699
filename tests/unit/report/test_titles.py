"""Titles of metrics, names of phases, and colours."""

import re

import pytest

from roll.report.palette import BAD, GOOD, RUN_COLORS, phase_colors
from roll.report.titles import _TITLES, number_text, phase_title, title_of
from tests.helpers.cases import cases
from tests.layout.source import REPOSITORY


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
