"""Charts of a report: SVGs whose numbers are right, whatever is drawn."""

import base64
import re
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

from roll.report.charts import (
    Line,
    binned_phases,
    line_chart,
    phase_chart,
    share_of_larger,
    smoothed,
)
from roll.report.run_files import Quantiles
from roll.report.svg import padded

EVIL = '</svg><script>alert("x")</script>\u202e\ud800\uffff'


def svg(uri: str) -> ElementTree.Element:
    """Parses it: what is no XML fails."""
    return ElementTree.fromstring(base64.b64decode(uri.removeprefix("data:image/svg+xml;base64,")))


def texts(uri: str) -> list[str]:
    return [element.text or "" for element in svg(uri).findall(".//{*}text")]


def quantiles(*values: float, counts: Sequence[float] = (1.0,)) -> Quantiles:
    low, high = min(values), max(values)
    edges = tuple(low + (high - low) * number / len(counts) for number in range(len(counts) + 1))
    return Quantiles(quantiles=(low, low, low, (low + high) / 2, high, high, high), edges=edges, counts=tuple(counts))


def test_a_curve_goes_from_its_first_to_its_last_point_between_round_numbers() -> None:
    uri = line_chart([Line("run", "#123456", [(0, 0.0), (10, 1.0)])])
    (line,) = svg(uri).findall(".//{*}polyline")
    (left, low), (right, high) = (map(float, point.split(",")) for point in line.attrib["points"].split())
    assert left == 46 and right == 350 and low > high, "y grows downwards"
    assert texts(uri) == ["0.00", "0.25", "0.50", "0.75", "1.00", "0", "2", "4", "6", "8", "10", "step"]


def test_a_legend_names_several_runs_and_no_single_one() -> None:
    lines = [Line(EVIL, "#111111", [(1, 1.0)]), Line("b" * 90, "#222222", [(1, 2.0)])]
    assert "left out" not in " ".join(texts(line_chart(lines[:1])))
    shown = " ".join(texts(line_chart(lines)))
    assert "<script>" in shown and "\\u202e" in shown and "characters left out" in shown
    assert [*svg(line_chart(lines)).findall(".//{*}script")] == []


@pytest.mark.parametrize(
    "values",
    [
        [1e308, -1e308], [5e-324, 0.0], [0.0, 0.0], [-3.0], [1e16, 1e16 + 2], [0.123456789, 0.123456788],
    ],
)  # fmt: skip
def test_any_numbers_can_be_drawn(values: list[float]) -> None:
    uri = line_chart([Line("", "#111111", list(enumerate(values)))])
    (line,) = svg(uri).findall(".//{*}polyline")
    assert "nan" not in line.attrib["points"] and "inf" not in line.attrib["points"]
    low, high = padded(values)
    assert low < high
    assert 3 <= len(texts(uri)) <= 14


def test_a_length_is_drawn_below_its_limit() -> None:
    uri = line_chart([Line("", "#111111", [(1, 40.0), (2, 60.0)])], "rollout/response_length_mean", 64)
    assert len(svg(uri).findall(".//{*}path[@stroke-dasharray]")) == 1 and "60" in texts(uri) and "0" in texts(uri)


def test_rewards_of_two_values_are_a_share_of_the_larger() -> None:
    spreads = [(1, quantiles(0, 0)), (2, quantiles(0, 1, counts=(3, 0, 1))), (3, quantiles(1, 1))]
    assert share_of_larger(spreads) == (1, [(1, 0.0), (2, 0.25), (3, 1.0)])
    assert share_of_larger([(1, quantiles(0, 1, counts=(3, 1, 1)))]) is None, "values between"
    assert share_of_larger([(1, quantiles(0, 0))]) is None and share_of_larger([]) is None


def test_phases_stand_on_each_other_and_those_of_no_time_are_no_chart() -> None:
    uri = phase_chart([(1, {"time/rollout_s": 1.0, "time/train_s": 3.0}), (2, {"time/rollout_s": 1.0})])
    assert {"rollout", "train", "step"} <= {*texts(uri)}
    paths = [path.attrib["d"] for path in svg(uri).findall(".//{*}path") if "fill" in path.attrib]
    assert [len(re.findall("M", path)) for path in paths] == [1, 2], "a phase of 0 s has no bar"
    assert phase_chart([(1, {"time/rollout_s": 0.0})]) == "" == phase_chart([])


def test_a_smoothed_curve_begins_at_its_first_value_and_hangs_on_nothing_that_comes_later() -> None:
    assert smoothed([(1, 0.0), (2, 3.0)], span=3) == [0.0, 2.0]
    noisy = [(step, float(step % 2)) for step in range(200)]
    assert smoothed(noisy)[-1] == pytest.approx(0.5, abs=0.06)
    assert smoothed(noisy)[:50] == smoothed(noisy[:50])
    assert smoothed([(1, 0.0), (101, 3.0)])[-1] == pytest.approx(3.0), "what is 100 steps back no longer counts"
    assert smoothed([]) == [] and smoothed([(7, 2.0)]) == [2.0]


def test_long_runs_are_averaged_in_bins_that_keep_the_total_time() -> None:
    rows = [(step, {"time/rollout_s": float(step), "time/other_s": 1.0}) for step in range(1000)]
    steps, seconds = binned_phases(rows)
    assert len(steps) == 200
    assert steps[:2] == [2.0, 7.0]
    assert list(seconds) == ["rollout", "other"]
    assert sum(seconds["rollout"]) * 5 == sum(range(1000))


def test_the_smallest_phases_are_drawn_as_other() -> None:
    rows = [(0, {f"time/phase{number}_s": float(number) for number in range(1, 13)})]
    _, seconds = binned_phases(rows)
    assert list(seconds) == [*(f"phase{number}" for number in range(12, 5, -1)), "other"]
    assert seconds["other"] == [1 + 2 + 3 + 4 + 5]
