"""Charts of a report as SVG, each in a data URI: an image runs no script, whatever its texts are."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from roll.report.run_files import Quantiles
from roll.run.display.curves import binned_phases, smoothed, smoothing_span
from roll.run.display.palette import RUN_COLORS, phase_colors
from roll.run.display.titles import phase_title
from roll.run.display.view import Rows
from roll.utils.text import middle_left_out, visible

COLORS = RUN_COLORS
_MOST_POINTS = 500
_FEW_POINTS = 20
_LONGEST_LABEL = 40
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "roll",
    "text.parse_math": False,  # a name may hold dollar signs
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e8e8e8",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@dataclass(frozen=True)
class Line:
    """A metric of one run over its steps."""

    label: str
    color: str
    points: Sequence[tuple[int, float]]


def line_chart(lines: Sequence[Line]) -> str:
    """Each step in a pale colour where there are many, and smoothed in a full one."""

    def draw(axes: Axes) -> None:
        for line in lines:
            steps, values = thinned(line.points)
            label = _label(line.label)
            if len(steps) < _FEW_POINTS:
                axes.plot(steps, values, color=line.color, marker="o", markersize=2.5, linewidth=1.2, label=label)
                continue
            axes.plot(steps, values, color=line.color, alpha=0.25, linewidth=0.8)
            means = smoothed(values, smoothing_span(len(values)))
            axes.plot(steps, means, color=line.color, linewidth=1.6, label=label)
        if len(lines) > 1:
            axes.legend(loc="best")
        _show_steps(axes)

    return _uri(draw)


def phase_chart(rows: Rows) -> str:
    """Seconds per step, by phase, as stacked areas; empty where no times were measured."""
    steps, phases = binned_phases(rows)
    if not any(map(sum, phases.values())):
        return ""

    def draw(axes: Axes) -> None:
        width = max(1.0, (steps[-1] - steps[0]) / max(1, len(steps) - 1))
        bottom, colors = [0.0] * len(steps), phase_colors(phases)
        for name, seconds in phases.items():
            label = _label(phase_title(name))
            axes.bar(steps, seconds, width=width, bottom=bottom, color=colors[name], linewidth=0, label=label)
            bottom = [low + high for low, high in zip(bottom, seconds, strict=True)]
        usual = sorted(bottom)[int(0.95 * (len(bottom) - 1))]
        axes.set_ylim(0, 1.1 * min(max(bottom), 2.5 * usual) or 1.0)
        axes.set_ylabel("seconds per step")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        _show_steps(axes)

    return _uri(draw, (7.2, 2.8), right=1.5)


def spread_chart(spreads: Sequence[tuple[int, Quantiles]]) -> str:
    """Chart over the steps: the median, half of the attempts, nine of ten, and the extremes; empty without any."""
    if not spreads:
        return ""
    shown = spreads[:: math.ceil(len(spreads) / _MOST_POINTS)]
    steps = [step for step, _ in shown]
    least, low, lower, median, upper, high, most = zip(*(spread.quantiles for _, spread in shown), strict=True)

    def draw(axes: Axes) -> None:
        axes.fill_between(steps, low, high, color=COLORS[0], alpha=0.15, linewidth=0, label="9 of 10")
        axes.fill_between(steps, lower, upper, color=COLORS[0], alpha=0.3, linewidth=0, label="half")
        axes.plot(steps, median, color=COLORS[0], linewidth=1.6, label="median")
        for extreme in (least, most):
            axes.plot(steps, extreme, color=COLORS[0], linewidth=0.6, linestyle=":")
        axes.legend(loc="best")
        _show_steps(axes)

    return _uri(draw)


def histogram(spread: Quantiles) -> str:
    def draw(axes: Axes) -> None:
        widths = [right - left for left, right in pairwise(spread.edges)]
        axes.bar(spread.edges[:-1], spread.counts, width=widths, align="edge", color=COLORS[0], linewidth=0)
        axes.set_ylabel("attempts")

    return _uri(draw)


def thinned(points: Sequence[tuple[int, float]]) -> tuple[list[float], list[float]]:
    """Thins a curve to _MOST_POINTS points, each the mean of neighbouring ones."""
    size = math.ceil(len(points) / _MOST_POINTS)
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    steps = [sum(step for step, _ in part) / len(part) for part in parts]
    return steps, [sum(value for _, value in part) / len(part) for part in parts]


def _show_steps(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_xlabel("step")


def _label(text: str) -> str:
    """A name in a legend; a leading underscore would hide it there."""
    return visible(middle_left_out(text, _LONGEST_LABEL)).replace("\n", " ").lstrip("_")


def _uri(draw: Callable[[Axes], None], inches: tuple[float, float] = (3.6, 2.1), right: float = 0.1) -> str:
    """`right`: the inches left free there."""
    width, height = inches
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=inches, facecolor="none")
        draw(figure.add_axes((0.55 / width, 0.42 / height, 1 - (0.55 + right) / width, 1 - 0.6 / height)))
        stream = io.BytesIO()
        FigureCanvasSVG(figure).print_svg(stream, metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
