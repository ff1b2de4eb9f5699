"""What a finished run amounts to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roll.utils.timing import phase_seconds

REWARD = "rollout/reward_mean"
VALIDATION = "val/reward_mean"

Rows = Sequence[tuple[int, Mapping[str, float]]]
"""Step and metrics, in the order of the steps (docs/metrics.md)."""


@dataclass(frozen=True)
class RunSummary:
    """First and last reward, validation at the start, at the end and at its best, total seconds by top-level phase."""

    num_steps: int
    reward_first: float | None
    reward_last: float | None
    validation_start: float | None
    validation_end: float | None
    validation_best: float | None
    validation_best_step: int | None
    seconds: float
    seconds_by_phase: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(rows: Rows) -> RunSummary:
    """The summary of the rows of a run; None where a quantity was never measured."""
    rewards = series(rows, REWARD)
    validation = series(rows, VALIDATION)
    best = max(validation, key=lambda point: point[1], default=None)
    seconds: dict[str, float] = {}
    for _, metrics in rows:
        for phase, value in phase_seconds(metrics).items():
            seconds[phase] = seconds.get(phase, 0.0) + value
    return RunSummary(
        num_steps=len(rewards),
        reward_first=rewards[0][1] if rewards else None,
        reward_last=rewards[-1][1] if rewards else None,
        validation_start=validation[0][1] if validation else None,
        validation_end=validation[-1][1] if validation else None,
        validation_best=best[1] if best else None,
        validation_best_step=best[0] if best else None,
        seconds=sum(seconds.values()),
        seconds_by_phase=dict(sorted(seconds.items(), key=lambda item: -item[1])),
    )


def series(rows: Rows, name: str) -> list[tuple[int, float]]:
    """The steps at which a metric was measured, and its values; NaN and infinities are none."""
    return [(step, metrics[name]) for step, metrics in rows if name in metrics and math.isfinite(metrics[name])]


def summary_lines(summary: RunSummary, files: Mapping[str, Path | str]) -> list[str]:
    """The summary as a person reads it. files: what lies where, e.g. {"curves": ".../curves.png"}."""
    lines = [f"{summary.num_steps} steps in {duration(summary.seconds)}"]
    if summary.reward_first is not None and summary.reward_last is not None:
        lines.append(f"reward       first {summary.reward_first:.3f}   last {summary.reward_last:.3f}")
    if summary.validation_start is not None and summary.validation_end is not None:
        best = f"best {summary.validation_best:.3f} at step {summary.validation_best_step}"
        lines.append(f"validation   start {summary.validation_start:.3f}   end {summary.validation_end:.3f}   {best}")
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
