"""Summary of a finished run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from roll.utils.timing import phase_seconds

# What a person sees first of a run: the columns of its table, and the two curves that say whether it learns.


@dataclass(frozen=True)
class Column:
    """One quantity of the console's table; `format` as in Python's format()."""

    title: str
    metric: str
    format: str


@dataclass(frozen=True)
class Curve:
    """A metric over the steps. `name` leads the summary's keys."""

    name: str
    metric: str
    best: Literal["highest", "lowest"] = "highest"


@dataclass(frozen=True)
class View:
    """Columns and curves that the display of one kind of run shows."""

    columns: tuple[Column, ...]
    training: Curve
    validation: Curve


Rows = Sequence[tuple[int, Mapping[str, float]]]
"""Step and metrics, in the order of the steps (docs/metrics.md)."""


@dataclass(frozen=True)
class RunSummary:
    """`training`: its means over the first and the last tenth of the steps; `validation`: its value at the start, at
    the end and at its best, and the step of that. Empty where nothing was measured. Seconds by top-level phase."""

    view: View
    num_steps: int
    training: dict[str, float]
    validation: dict[str, float]
    seconds: float
    seconds_by_phase: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Flat, under the names of the curves: reward_first, ..., validation_best_step; None: never measured."""
        curves = ((self.view.training, self.training, _TRAINING), (self.view.validation, self.validation, _VALIDATION))
        return {
            "num_steps": self.num_steps,
            **{f"{curve.name}_{key}": values.get(key) for curve, values, keys in curves for key in keys},
            "seconds": self.seconds,
            "seconds_by_phase": self.seconds_by_phase,
        }


_TRAINING = ("first", "last")
_VALIDATION = ("start", "end", "best", "best_step")


def summarise(rows: Rows, view: View) -> RunSummary:
    training = series(rows, view.training.metric)
    validation = series(rows, view.validation.metric)
    seconds: dict[str, float] = {}
    for _, metrics in rows:
        for phase, value in phase_seconds(metrics).items():
            seconds[phase] = seconds.get(phase, 0.0) + value
    return RunSummary(
        view=view,
        num_steps=len(training),
        training=_ends([value for _, value in training]) if training else {},
        validation=_course(validation, view.validation) if validation else {},
        seconds=sum(seconds.values()),
        seconds_by_phase=dict(sorted(seconds.items(), key=lambda item: -item[1])),
    )


def _ends(values: list[float]) -> dict[str, float]:
    count = max(1, len(values) // 10)
    return {"first": sum(values[:count]) / count, "last": sum(values[-count:]) / count}


def _course(points: list[tuple[int, float]], curve: Curve) -> dict[str, float]:
    sign = 1 if curve.best == "highest" else -1
    step, best = max(points, key=lambda point: sign * point[1])
    return {"start": points[0][1], "end": points[-1][1], "best": best, "best_step": step}


def series(rows: Rows, name: str) -> list[tuple[int, float]]:
    """The steps at which a metric was measured, and its values; NaN and infinities are none."""
    return [(step, metrics[name]) for step, metrics in rows if name in metrics and math.isfinite(metrics[name])]


def summary_lines(summary: RunSummary, files: Mapping[str, Path | str]) -> list[str]:
    """The summary as a person reads it. files: what lies where, e.g. {"output": "..."}."""
    lines = [f"{summary.num_steps} steps in {duration(summary.seconds)}"] if summary.num_steps else []
    if summary.training:
        line = "{:<12} first {first:.3f}   last {last:.3f}".format(summary.view.training.name, **summary.training)
        count = summary.num_steps // 10
        lines.append(f"{line}   (means of {count} steps each)" if count > 1 else line)
    if summary.validation:
        course = "{:<12} start {start:.3f}   end {end:.3f}   best {best:.3f} at step {best_step}"
        lines.append(course.format(summary.view.validation.name, **summary.validation))
    for number, (phase, seconds) in enumerate(summary.seconds_by_phase.items()):
        share = seconds / summary.seconds if summary.seconds else 0.0
        lines.append(f"{'time' if number == 0 else '':<12} {phase:<16} {duration(seconds):>9} {share:>5.0%}")
    width = max((len(name) for name in files), default=0)
    lines.extend(f"{name:<{max(width, 12)}} {path}" for name, path in files.items())
    return lines


def duration(seconds: float) -> str:
    """Example: 0.42 -> "0.42 s", 75 -> "1 m 15 s", 7380 -> "2 h 03 m"."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} m {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} m"
