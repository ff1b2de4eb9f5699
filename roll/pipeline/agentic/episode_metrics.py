"""What a step's episodes were like, per tag."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from roll.types.rollout import Trajectory, TrajectoryGroup, Turn

CRASHES, HANGS = "env_crashes", "env_hangs"
"""Metrics of an episode that are summed up over all tags."""


def mean_metrics(turns: Sequence[Turn], last: AbstractSet[str]) -> dict[str, float]:
    """An episode's metrics: means over its turns, of those in `last` the value after the last turn."""
    values: dict[str, list[float]] = defaultdict(list)
    for turn in turns:
        for name, value in turn.metrics.items():
            values[name].append(value)
    return {name: float(v[-1] if name in last else np.mean(v)) for name, v in values.items()}


def episode_metrics(groups: Sequence[TrajectoryGroup], prefix: str) -> dict[str, float]:
    """`<prefix>/<tag>/<name>_mean` over the episodes that did not fail, the share of those that failed, and how many
    environments crashed or hung, retries included. `<prefix>/success_mean` is over all tags."""
    by_tag: dict[str, list[Trajectory]] = defaultdict(list)
    for group in groups:
        by_tag[group.task.domain] += group.attempts
    metrics: dict[str, float] = {}
    for tag, attempts in sorted(by_tag.items()):
        metrics |= {f"{prefix}/{tag}/{name}": value for name, value in _of_tag(attempts).items()}
    metrics |= {f"{prefix}/{name}": value for name, value in _of_all(by_tag).items()}
    return metrics


def _of_tag(attempts: Sequence[Trajectory]) -> dict[str, float]:
    played = [attempt for attempt in attempts if attempt.failure is None]
    metrics = {"failed_fraction": 1 - len(played) / len(attempts)}
    if not played:
        return metrics
    metrics["return_mean"] = float(np.mean([attempt.reward for attempt in played]))
    values: dict[str, list[float]] = defaultdict(list)
    for attempt in played:
        for name, value in attempt.metrics.items():
            if name not in (CRASHES, HANGS):
                values[name].append(value)
    return metrics | {f"{name}_mean": float(np.mean(v)) for name, v in sorted(values.items())}


def _of_all(by_tag: dict[str, list[Trajectory]]) -> dict[str, float]:
    attempts = [attempt for of_tag in by_tag.values() for attempt in of_tag]
    metrics = {
        "crashes": sum(attempt.metrics.get(CRASHES, 0.0) for attempt in attempts),
        "hangs": sum(attempt.metrics.get(HANGS, 0.0) for attempt in attempts),
    }
    wins = [attempt.metrics["success"] for attempt in attempts if "success" in attempt.metrics]
    return metrics | ({"success_mean": float(np.mean(wins))} if wins else {})
