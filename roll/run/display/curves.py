"""A picture of the run: reward, validation and where the time went."""

import logging
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from roll.run.display.palette import RUN_COLORS, phase_colors
from roll.run.display.titles import phase_title
from roll.run.display.view import Curve, Rows, View, duration, series
from roll.utils.text import visible
from roll.utils.timing import phase_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

_MAX_PHASES = 8  # the shortest ones beyond are drawn as one
_MAX_VALIDATION_CURVES = 6
_MAX_BARS = 200
SPAN = 10  # steps that a smoothed curve averages, as in an exponential mean
LEAST_POINTS = 50  # below, no curve of a chart is smoothed


def draw_curves(rows: Rows, path: Path | str, view: View, title: str = "") -> Path | None:
    """Writes a PNG and returns its path. None when rows is empty, and with a note in the log when there is no
    matplotlib, or it cannot draw or write: a picture ends no run."""
    if not rows:
        return None
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        logger.info("curves are not drawn: matplotlib is not installed (pip install matplotlib)")
        return None

    figure = Figure(figsize=(9, 9), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    try:
        with matplotlib.rc_context({"text.parse_math": False}):  # a name may hold dollar signs
            _draw(figure, rows, view, visible(title))
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=130)
    except Exception as error:
        logger.warning("%s is not drawn. %s: %s", path, type(error).__name__, error)
        return None
    return Path(path)


def _draw(figure: "Figure", rows: Rows, view: View, title: str) -> None:
    training, validation, time = figure.subplots(3, 1, sharex=True)
    _draw_training(training, rows, view.training)
    _draw_validation(validation, rows, view.validation)
    _draw_time(time, rows)
    time.set_xlabel("step")
    for axes in (training, validation, time):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.xaxis.get_major_locator().set_params(integer=True)
    if title:
        figure.suptitle(title, fontsize=12)


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


def _draw_training(axes: "Axes", rows: Rows, curve: Curve) -> None:
    axes.set_ylabel(curve.label)
    points = series(rows, curve.metric)
    if not points:
        return _say_empty(axes, f"no {curve.name} was measured")
    steps, values = zip(*points, strict=True)
    if len(points) < LEAST_POINTS:
        axes.plot(steps, values, color=RUN_COLORS[0], marker="o", markersize=3)
        return None
    axes.plot(steps, values, color=RUN_COLORS[0], alpha=0.5, linewidth=1, label="each step")
    axes.plot(steps, smoothed(points), color=RUN_COLORS[0], linewidth=2, label=f"smoothed over {SPAN} steps")
    axes.legend(frameon=False, loc="best", fontsize=9)


def _draw_validation(axes: "Axes", rows: Rows, curve: Curve) -> None:
    axes.set_ylabel(curve.label)
    names = sorted({name for _, metrics in rows for name in metrics if _is_part(name, curve)})
    names = [curve.metric, *(name for name in names if name != curve.metric)]
    curves = [(name, series(rows, name)) for name in names]
    curves = [(name, points) for name, points in curves if points][:_MAX_VALIDATION_CURVES]
    for number, (name, points) in enumerate(curves):
        steps, values = zip(*points, strict=True)
        label = _label(name, curve)
        style = "-" if number == 0 else "--"
        axes.plot(
            steps,
            values,
            style,
            color=RUN_COLORS[number],
            marker="o",
            markersize=4,
            linewidth=2 - (number > 0),
            label=label,
        )
    if not curves:
        return _say_empty(axes, "no validation was run")
    if len(curves) > 1:
        axes.legend(frameon=False, loc="best", fontsize=9)
    first, last = curves[0][1][0], curves[0][1][-1]
    for step, value in {first, last}:
        axes.annotate(
            f"{value:.3f}",
            (step, value),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=RUN_COLORS[0],
        )
    axes.margins(y=0.15)


def _is_part(name: str, curve: Curve) -> bool:
    return name.startswith(curve.parts) and name.count("/") <= 2


def _label(name: str, curve: Curve) -> str:
    """Example: val/reward_mean/math -> math, val/pass_at_2 -> pass_at_2."""
    folder, _, last = curve.metric.rpartition("/")
    return name.removeprefix(f"{folder}/").replace(f"{last}/", "")


def _draw_time(axes: "Axes", rows: Rows) -> None:
    axes.set_ylabel("seconds per step")
    steps, phases = binned_phases(rows)
    total = sum(map(sum, phases.values()))
    if not total:
        return _say_empty(axes, "no times were measured")
    width = min((later - step for step, later in pairwise(steps)), default=1.0)
    bottom, colors = [0.0] * len(steps), phase_colors(phases)
    for name, seconds in phases.items():
        label = f"{phase_title(name)}  {sum(seconds) / total:.0%}"
        axes.bar(steps, seconds, width=width, bottom=bottom, color=colors[name], label=label, linewidth=0)
        bottom = [low + high for low, high in zip(bottom, seconds, strict=True)]
    top = _robust_top(bottom)
    axes.set_ylim(0, top)
    for step, height in zip(steps, bottom, strict=True):
        if height > top:
            axes.annotate(duration(height), (step, top), xytext=(6, -10), textcoords="offset points", fontsize=8)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, fontsize=9)


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


def _robust_top(heights: Sequence[float]) -> float:
    """Room for the ordinary steps: a first step of ten times the usual length runs out of the picture."""
    usual = sorted(heights)[int(0.9 * (len(heights) - 1))]
    return 1.08 * min(max(heights), 2.5 * usual) or 1.0


def _say_empty(axes: "Axes", text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="#777777")
