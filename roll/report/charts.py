"""The charts of a report: curves, times by phase, and how rewards and lengths are spread."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from roll.report.palette import RUN_COLORS, phase_colors
from roll.report.run_files import Quantiles
from roll.report.svg import Plot, padded
from roll.report.titles import phase_title
from roll.run.display.view import Rows
from roll.utils.timing import phase_seconds

COLORS = RUN_COLORS
_MAX_PHASES = 8  # the shortest ones beyond are drawn as one
_MAX_BARS = 200
SPAN = 10  # steps that a smoothed curve averages, as in an exponential mean
LEAST_POINTS = 50  # below, no curve of a chart is smoothed
_MOST_POINTS = 500
RAW_OPACITY = 0.5  # of each step's value beside the smoothed line
_SHARE = re.compile(r"(fraction|success_mean|accuracy|pass_at_\d+|reward_(mean|min|max))(/.*)?$")
_LENGTH = re.compile(r"rollout/response_length_(mean|max)$")
_NOISE = 0.02  # of a value: a smaller spread fills no chart


@dataclass(frozen=True)
class Line:
    """A metric of one run over its steps."""

    label: str
    color: str
    points: Sequence[tuple[int, float]]


def line_chart(lines: Sequence[Line], name: str = "", limit: float | None = None) -> str:
    """A chart of a metric: each step, and a smoothed line where there are many. `limit`: see `limit_of`."""
    curves = drawn([line.points for line in lines], SPAN if is_noisy(name) else 1)
    steps = [step for line in lines for step in (line.points[0][0], line.points[-1][0])]
    values = [value for _, each, _ in curves for value in each]
    plot = Plot((min(steps), max(steps)), axis_range(name, values, limit) or padded(values))
    if limit is not None:
        plot.limit(limit)
    for line, (xs, each, means) in zip(lines, curves, strict=True):
        if means:
            plot.line(xs, each, line.color, 0.8, RAW_OPACITY)
            plot.line(xs, means, line.color)
        else:
            plot.line(xs, each, line.color, 1.2)
            plot.dots(xs, each, line.color)
        if len(lines) > 1:
            plot.name(line.label, line.color)
    return plot.uri()


Points = Sequence[tuple[int, float]]


def drawn(
    curves: Sequence[Points], span: int = SPAN, places: Sequence[Mapping[int, float]] | None = None
) -> list[tuple[list[float], list[float], list[float]]]:
    """Return where the points of each curve lie, their values and their smoothed values, all curves of a chart alike:
    smoothed if one of them has LEAST_POINTS (else without smoothed values), and thinned to the same number of steps a
    point. `places`: where the steps of each curve lie; default: at their number."""
    longest = max(map(len, curves), default=0)
    size = math.ceil(longest / _MOST_POINTS) or 1
    columns = []
    for points, place in zip(curves, places or [{}] * len(curves), strict=True):
        means = smoothed(points, span) if longest >= LEAST_POINTS and span > 1 else []
        xs, values = [place.get(step, step) for step, _ in points], [value for _, value in points]
        columns.append((_thinned(xs, size), _thinned(values, size), _thinned(means, size)))
    return columns


def smoothed(points: Sequence[tuple[float, float]], span: float = SPAN) -> list[float]:
    """Return the exponential mean of each value and those before it; `points` are steps and values.

    A value `n` steps back has the weight ((span - 1) / (span + 1)) ** n, and the weights are divided by their sum, so
    that the first points are not pulled to 0. A point depends on the steps before it alone: runs that are equal so far
    are drawn equal, however long they become.

    Example: smoothed([(1, 0.0), (2, 3.0)], span=3) -> [0.0, 2.0]
    """
    keep, total, weight, means = (span - 1) / (span + 1), 0.0, 0.0, []
    for (step, value), (before, _) in zip(points, [points[0], *points] if points else [], strict=False):
        fade = keep ** (step - before)
        total, weight = total * fade + value, weight * fade + 1
        means.append(total / weight)
    return means


def is_noisy(name: str) -> bool:
    """Whether a metric is measured, and not set: what is set is never smoothed."""
    return not name.endswith("learning_rate")


def limit_of(name: str, configs: Sequence[Mapping[str, Any]], values: Sequence[float]) -> float | None:
    """Return the limit of a response's length if the chart shows such lengths, some of them above half of it, and all
    runs have the same limit."""
    limits = {config.get("response_length") for config in configs}
    limit = limits.pop() if len(limits) == 1 else None
    return limit if _LENGTH.match(name) and isinstance(limit, int) and max(values, default=0) > limit / 2 else None


def axis_range(name: str, values: Sequence[float], limit: float | None = None) -> tuple[float, float] | None:
    """Return the range of a chart's values by what the metric is: a share or a reward from 0 to 1 (to .1 if all are
    below), a length to its limit, a value that hardly changes from 0; None: what suits the values."""
    low, high = min(values, default=-1.0), max(values, default=-1.0)
    if limit is not None:
        return 0.0, round(1.05 * max(limit, high), 1)
    if _SHARE.search(name) and low >= 0 and high <= 1:
        return 0.0, 1.0 if high > 0.1 else 0.1
    return (0.0, 1.25 * high) if low > 0 and high - low < _NOISE * high else None


def phase_chart(rows: Rows) -> str:
    """Seconds per step, by phase, stacked; empty where no times were measured. A step far longer than the usual one
    runs out of the picture."""
    steps, phases = binned_phases(rows)
    if not any(map(sum, phases.values())):
        return ""
    totals = [sum(seconds) for seconds in zip(*phases.values(), strict=True)]
    usual = sorted(totals)[int(0.95 * (len(totals) - 1))]
    top = 1.1 * min(max(totals), 2.5 * usual) or 1.0
    edges = _edges(steps)
    plot = Plot((edges[0], edges[-1]), (0.0, top), width=760, height=230)
    bottom, colors = [0.0] * len(steps), phase_colors(phases)
    for name, seconds in phases.items():
        heights = [low + high for low, high in zip(bottom, seconds, strict=True)]
        plot.bars(edges, bottom, heights, colors[name])
        plot.name(phase_title(name), colors[name])
        bottom = heights
    return plot.uri()


def binned_phases(rows: Rows) -> tuple[list[float], dict[str, list[float]]]:
    """Steps and mean seconds of each phase, most expensive first; at most 200 bins, small phases as `other`."""
    timed = [(step, phase_seconds(metrics)) for step, metrics in rows]
    timed = [(step, phases) for step, phases in timed if phases]
    totals: dict[str, float] = {}
    for _, phases in timed:
        for name, seconds in phases.items():
            totals[name] = totals.get(name, 0.0) + seconds
    ordered = sorted(totals, key=lambda name: (name == "other", -totals[name]))
    if len(ordered) > _MAX_PHASES:
        ordered = [*[name for name in ordered if name != "other"][: _MAX_PHASES - 1], "other"]
    size = math.ceil(len(timed) / _MAX_BARS) or 1
    bins = [timed[start : start + size] for start in range(0, len(timed), size)]
    steps = [sum(step for step, _ in chunk) / len(chunk) for chunk in bins]
    seconds_of: dict[str, list[float]] = {name: [] for name in ordered}
    for chunk in bins:
        sums = dict.fromkeys(ordered, 0.0)
        for _, phases in chunk:
            for name, seconds in phases.items():
                sums[name if name in sums else "other"] += seconds
        for name in ordered:
            seconds_of[name].append(sums[name] / len(chunk))
    return steps, seconds_of


def spread_chart(spreads: Sequence[tuple[int, Quantiles]]) -> str:
    """Chart over the steps: the median, half of the attempts, nine of ten, and the extremes; empty without any."""
    if not spreads:
        return ""
    shown = spreads[:: math.ceil(len(spreads) / _MOST_POINTS)]
    steps = [float(step) for step, _ in shown]
    least, low, lower, median, upper, high, most = zip(*(spread.quantiles for _, spread in shown), strict=True)
    plot = Plot((steps[0], steps[-1]), padded([*least, *most]))
    plot.band(steps, low, high, COLORS[0], 0.15)
    plot.band(steps, lower, upper, COLORS[0], 0.3)
    plot.line(steps, median, COLORS[0])
    for extreme in (least, most):
        plot.line(steps, extreme, COLORS[0], 0.6, 0.6)
    plot.name("median, half, 9 of 10, extremes", COLORS[0])
    return plot.uri()


def histogram(spread: Quantiles) -> str:
    """Chart of how many attempts have which value."""
    top = max(spread.counts) * 1.05 or 1.0
    is_whole = all(value == round(value) for value in spread.quantiles)
    plot = Plot((spread.edges[0], spread.edges[-1]), (0.0, top), x_label="attempts by value", whole_x=is_whole)
    plot.bars(spread.edges, [0.0] * len(spread.counts), spread.counts, COLORS[0])
    return plot.uri()


def share_of_larger(spreads: Sequence[tuple[int, Quantiles]]) -> tuple[float, list[tuple[int, float]]] | None:
    """Return the larger of two values that all attempts have, and the share with it at each step; None where there are
    more values, or only one."""
    values = {end for _, spread in spreads for end in (spread.quantiles[0], spread.quantiles[-1])}
    if len(values) != 2 or any(any(spread.counts[1:-1]) for _, spread in spreads if not _is_one_value(spread)):
        return None
    larger = max(values)
    return larger, [(step, _share(spread, larger)) for step, spread in spreads]


def _share(spread: Quantiles, larger: float) -> float:
    if _is_one_value(spread):
        return float(spread.quantiles[0] == larger)
    return spread.counts[-1] / (sum(spread.counts) or 1.0)


def _is_one_value(spread: Quantiles) -> bool:
    return spread.quantiles[0] == spread.quantiles[-1]


def _thinned(values: Sequence[float], size: int) -> list[float]:
    """Means of neighbouring values, `size` of them each."""
    parts = (values[start : start + size] for start in range(0, len(values), size))
    return [sum(part) / len(part) for part in parts]


def _edges(steps: Sequence[float]) -> list[float]:
    """Places where the bars of the steps meet: halfway between."""
    inner = [(left + right) / 2 for left, right in pairwise(steps)]
    reach = (steps[1] - steps[0]) / 2 if len(steps) > 1 else 0.5
    last = (steps[-1] - steps[-2]) / 2 if len(steps) > 1 else 0.5
    return [steps[0] - reach, *inner, steps[-1] + last]
