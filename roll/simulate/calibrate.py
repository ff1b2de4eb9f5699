"""Writes what things cost: the engines measured here, the trainer from a run of the same settings."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.errors import ConfigError, RollError
from roll.simulate.costs import Costs, write_costs
from roll.simulate.fit_run import Row, fit_beside, fit_decode, fit_trainer, rows_of_run
from roll.simulate.from_options import devices_of, load_yaml

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
