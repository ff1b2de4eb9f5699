"""The charts of a report: curves, times by phase, and how rewards and lengths are spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from roll.report.run_files import Quantiles
from roll.report.svg import Plot, padded
from roll.run.display.curves import binned_phases, smoothed, smoothing_span
from roll.run.display.palette import RUN_COLORS, phase_colors
from roll.run.display.titles import phase_title
from roll.run.display.view import Rows

COLORS = RUN_COLORS
_MOST_POINTS = 500
_FEW_POINTS = 20


@dataclass(frozen=True)
class Line:
    """A metric of one run over its steps."""

    label: str
    color: str
    points: Sequence[tuple[int, float]]


def line_chart(lines: Sequence[Line]) -> str:
    """Each step in a pale colour where there are many, and smoothed in a full one."""
    curves = [(line, *thinned(line.points)) for line in lines]
    steps = [step for _, each, _ in curves for step in (each[0], each[-1])]
    plot = Plot((min(steps), max(steps)), padded([value for *_, values in curves for value in values]))
    for line, xs, values in curves:
        if len(xs) < _FEW_POINTS:
            plot.line(xs, values, line.color, 1.2)
            plot.dots(xs, values, line.color)
        else:
            plot.line(xs, values, line.color, 0.8, 0.3)
            plot.line(xs, smoothed(values, smoothing_span(len(values))), line.color)
        if len(lines) > 1:
            plot.name(line.label, line.color)
    return plot.uri()


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


def thinned(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Thins a curve to _MOST_POINTS points, each the mean of neighbouring ones."""
    size = math.ceil(len(points) / _MOST_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    steps = [sum(step for step, _ in part) / len(part) for part in parts]
    return steps, [sum(value for _, value in part) / len(part) for part in parts]


def _edges(steps: Sequence[float]) -> list[float]:
    """Places where the bars of the steps meet: halfway between."""
    inner = [(left + right) / 2 for left, right in pairwise(steps)]
    reach = (steps[1] - steps[0]) / 2 if len(steps) > 1 else 0.5
    last = (steps[-1] - steps[-2]) / 2 if len(steps) > 1 else 0.5
    return [steps[0] - reach, *inner, steps[-1] + last]
