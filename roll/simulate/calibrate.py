"""Writes what things cost: the engines measured here, the trainer from a run of the same settings."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.tables.roles import ACTOR_INFER
from roll.errors import ConfigError, RollError
from roll.run.tracking.local import METRICS_FILE, read_metrics
from roll.simulate.from_options import devices_of, load_yaml
from roll.simulate.setup import Costs, write_costs
from roll.simulate.step_model import PASSES
from roll.utils.timing import phase_seconds

# What things cost, from the metrics of a run.

Row = Mapping[str, float]
_MOST_LOST = 0.75
SKIPPED_STEPS = 2  # the first ones warm up


def rows_of_run(directory: Path, key: str = "--run") -> Sequence[Row]:
    """Its steps but the first ones. Raises ConfigError where they are not there."""
    rows = [row for _, row in read_metrics(directory / METRICS_FILE) if "train_actor" in phase_seconds(row)]
    if len(rows) < SKIPPED_STEPS + 2:
        raise ConfigError(
            f"{key} {directory}: {len(rows)} steps of training are in its {METRICS_FILE}; at least {SKIPPED_STEPS + 2} "
            "are needed. Add jsonl to track_with of that run."
        )
    return rows[SKIPPED_STEPS:]


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


def fit_beside(alone: Sequence[Row], together: Sequence[Row]) -> float:
    """Slowdown of training while engines sample.

    `alone` are rows of a synchronous run, `together` of an async one with the same settings, whose engines sample
    during a part of the training.

    Example: 3 s where it was 2 s, with engines that were busy throughout: 1.5; for two thirds of the time: 2.
    """
    slower = _train_s_per_token(together) / _train_s_per_token(alone)
    busy = statistics.fmean(row[f"busy/{ACTOR_INFER.name}_fraction"] for row in together)
    lost = (1 - 1 / max(slower, 1.0)) / max(busy, 1e-9)
    return 1 / (1 - min(lost, _MOST_LOST))


def _train_s_per_token(rows: Sequence[Row]) -> float:
    return sum(phase_seconds(row)["train_actor"] for row in rows) / sum(row["rollout/num_tokens"] for row in rows)


def fit_decode(rows: Sequence[Row], num_engines: int) -> list[list[float]]:
    """Points of `decode_s`. A step of a + b x running, summed over a synchronous rollout in which all answers begin at
    once, is a x longest answer + b x tokens of an engine; so a and b come from the steps by least squares. Raises
    ConfigError for a run whose answers began in other steps than they ended."""
    if any(row.get("rollout/running_groups") or row.get("rollout/finished_groups") for row in rows):
        raise ConfigError(
            "--run: its rollouts ran ahead of the training, so that its steps do not tell what decoding costs. Name "
            "its YAML (--config_name), for which the engine is measured, or a synchronous run."
        )
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


NUM_STEPS = 8
_SYNCHRONOUS = ("async_generation_ratio=0",)
_AHEAD = ("async_generation_ratio=1", "max_staleness=null", "unfinished_groups=carry")
_START = "import sys; from roll.commands.run import main; sys.exit(main(sys.argv[1], sys.argv[2:]))"


def calibrate(options: argparse.Namespace, overrides: Sequence[str]) -> Iterator[str]:
    """Writes the file and yields what it says. With a YAML the engine is measured here, and the trainer in short runs
    of it, unless --run names one that has been. Without, all is taken from --run."""
    if options.config_name is None:
        if options.run is None:
            raise ConfigError("calibrate: name a YAML (--config_name) to measure, or a run (--run) to read.")
        rows = rows_of_run(options.run)
        costs = {**fit_trainer(rows, options.train_devices or 1), "decode_s": fit_decode(rows, options.engines or 1)}
        source = f"metrics of {options.run.name}"
    else:
        config, plan = load_yaml(options, overrides)
        rows, more = (rows_of_run(options.run), {}) if options.run else _measured_runs(options, overrides)
        costs = {**fit_trainer(rows, devices_of(plan).train), **_engine_costs(config, plan), **more}
        source = f"{options.config_name}, measured"
    write_costs(options.out, Costs(**costs), {"from": source, "steps": len(rows)})
    for name in (field.name for field in fields(Costs)):
        yield f"{name:<24}{_shown(costs[name]) if name in costs else 'not measured: the default'}"
    yield f"written to {options.out}"


def _engine_costs(config: AlgorithmConfig, plan: BatchPlan) -> dict[str, Any]:
    from roll.simulate.measure_engine import measure_engine  # imports torch

    return measure_engine(config, plan)


def _measured_runs(options: argparse.Namespace, overrides: Sequence[str]) -> tuple[list[Row], dict[str, Any]]:
    """Rows of two short synchronous runs, whose sizes tell what a step costs beside its tokens; and, where trainer and
    engines have devices of their own, what a third one tells that runs ahead: how much they slow each other down."""
    alone = [*overrides, *_SYNCHRONOUS]
    whole = _rows_of_short_run(options, alone)
    rows = [*_rows_of_short_run(options, [*alone, *other_size(options, alone)]), *whole]
    _, plan = load_yaml(options, alone)
    ahead = [*overrides, *_AHEAD]
    if devices_of(plan).is_shared or not _works(options, ahead):
        return rows, {}
    return rows, {"beside": fit_beside(whole, _rows_of_short_run(options, ahead))}


def other_size(options: argparse.Namespace, overrides: Sequence[str]) -> Sequence[str]:
    """Overrides for half of a step's groups, in smaller updates where they would not fill one; else for twice as
    many."""
    config, _ = load_yaml(options, overrides)
    at = "actor_train.training_args.gradient_accumulation_steps"
    half = f"rollout_batch_size={max(1, config.rollout_batch_size // 2)}"
    accumulated = config.actor_train.training_args.gradient_accumulation_steps
    double = [f"rollout_batch_size={2 * config.rollout_batch_size}"]
    smaller = ([half], [half, f"{at}={max(1, accumulated // 2)}"])
    return next((size for size in smaller if _works(options, [*overrides, *size])), double)


def _works(options: argparse.Namespace, overrides: Sequence[str]) -> bool:
    try:
        load_yaml(options, overrides)
    except ConfigError:
        return False
    return True


def _rows_of_short_run(options: argparse.Namespace, overrides: Sequence[str]) -> Sequence[Row]:
    with tempfile.TemporaryDirectory() as folder:
        shorter = [f"max_steps={NUM_STEPS}", "eval_steps=-1", "save_steps=-1", "track_with=[jsonl]"]
        shorter += [f"output_dir={folder}", f"logging_dir={folder}"]
        place = ["--config_path", options.config_path, "--config_name", options.config_name]
        command = [sys.executable, "-c", _START, options.pipeline, *place, *overrides, *shorter]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise RollError(f"the run of {NUM_STEPS} steps ended with {done.returncode}:\n{done.stderr[-2000:]}")
        return rows_of_run(Path(folder))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(f"{count:g}: {seconds:.3g}" for count, seconds in value)
    return f"{value:.4g}"
