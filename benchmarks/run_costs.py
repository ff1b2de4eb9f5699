"""What things cost in a run, from the metrics of a synchronous one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roll.simulate.setup import PASSES
from roll.utils.timing import phase_seconds

Row = Mapping[str, float]


def fit_trainer(rows: Sequence[Row], train_devices: int) -> dict[str, Any]:
    """Costs of everything but the engines. Training takes an overhead and so much per token, by least squares where
    the steps differ enough to tell the two."""
    tokens = [row["rollout/num_tokens"] for row in rows]
    overhead, per_token = line_through(tokens, [phase_seconds(row)["train_actor"] for row in rows])
    costs: dict[str, Any] = {
        "train_overhead_s": overhead,
        "train_tokens_per_s": 1 / (per_token * train_devices),
        "publish_s": _median(rows, "weight_sync"),
        "driver_s": _median(rows, "gather") + _median(rows, "other"),
    }
    num_passes = max(sum(f"/score/{name}_" in key for name in PASSES for key in row) for row in rows)
    scored_s = sum(phase_seconds(row).get("score", 0.0) for row in rows)
    if num_passes and scored_s:
        costs["score_tokens_per_s"] = num_passes * sum(tokens) / scored_s / train_devices
    return costs


def fit_decode(rows: Sequence[Row], num_engines: int) -> list[list[float]]:
    """Points of `decode_s`. A step of a + b x running, summed over a synchronous rollout in which all answers begin at
    once, is a x longest answer + b x tokens of an engine; so a and b come from the steps by least squares."""
    longest = np.array([row["rollout/response_length_max"] for row in rows])
    sampled = np.array([_sampled(row) / num_engines for row in rows])
    seconds = np.array([phase_seconds(row)["rollout"] for row in rows])
    a, b = _not_negative(np.stack([longest, sampled], 1), seconds)
    most = max(2.0, float(np.max(sampled / longest)) * 2)
    return [[1, max(a + b, 1e-9)], [most, max(a + b * most, 1e-9)]]


def line_through(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """(intercept, slope) by least squares, neither below 0. Points at nearly one x tell no intercept.

    Example: (1, 3), (2, 5) -> (1, 2)
    """
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if np.ptp(xs) < 0.2 * xs.mean():
        return 0.0, float(ys.sum() / xs.sum())
    intercept, slope = _not_negative(np.stack([np.ones_like(xs), xs], 1), ys)
    return intercept, max(slope, 1e-12)


def _not_negative(columns: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Least squares of two columns; where one weight would be below 0 it is 0, and the other is fitted alone."""
    first, second = np.linalg.lstsq(columns, y, rcond=None)[0]
    if first >= 0 and second >= 0:
        return float(first), float(second)
    alone = columns[:, 1] if first < 0 else columns[:, 0]
    weight = float(alone @ y / (alone @ alone))
    return (0.0, weight) if first < 0 else (weight, 0.0)


def _sampled(row: Row) -> float:
    mean, prompt = row["rollout/response_length_mean"], row["rollout/prompt_length_mean"]
    return row["rollout/num_tokens"] * mean / (mean + prompt)


def _median(rows: Sequence[Row], phase: str) -> float:
    return statistics.median(phase_seconds(row).get(phase, 0.0) for row in rows)
