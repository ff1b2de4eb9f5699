"""Rollouts that run ahead against synchronous ones on two cores, and the simulator against both.

    python examples/tiny-sort/prepare.py --out output/tiny-sort
    python benchmarks/rollout_scheduling.py --data output/tiny-sort [--pairs 10] [--steps 24]

The whole pipeline, one engine and one trainer on a core each, with answers of given, heavy-tailed lengths
(given_lengths.py). Schedules take turns, so that a busy machine disturbs all alike; each is compared with the
synchronous run of its own round. The simulator gets its costs from the synchronous run of the round before (of the
first round: of the same), and plays the lengths that the run had.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from given_lengths import LENGTHS
from ratios import describe_ratios

from roll.configs.plan.rollout_bounds import RolloutBounds, ahead_by
from roll.distributed.scheduler.simulate.costs import Costs
from roll.distributed.scheduler.simulate.fit_run import Row, fit_decode, fit_trainer
from roll.distributed.scheduler.simulate.setup import Devices, Setup
from roll.distributed.scheduler.simulate.simulation import Report, simulate
from roll.distributed.scheduler.simulate.workload import LogNormal
from roll.pipeline.tracking.local import read_metrics
from roll.utils.timing import phase_seconds

REPOSITORY = Path(__file__).resolve().parents[1]
GROUPS, SIZE, CAP, PROMPT = 16, 4, 300, 14
WORK = {"median": 30.0, "common": 0.9, "own": 0.7, "cap": CAP, "prompt": PROMPT}
SCHEDULES = {"synchronous": (0.0, 0), "r 1 S 1": (1.0, 1), "r 1 S 2": (1.0, 2), "r .5 S 2": (0.5, 2)}
SKIPPED_STEPS = 4
PHASES = ("rollout", "gather", "train_actor", "weight_sync", "other")


def run(data: Path, schedule: str, steps: int) -> Sequence[Row]:
    """Its metrics, step by step."""
    ratio, staleness = SCHEDULES[schedule]
    with tempfile.TemporaryDirectory() as output:
        overrides = {
            "output_dir": output,
            "logging_dir": output,
            "max_steps": steps,
            "eval_steps": -1,
            "save_steps": -1,
            "track_with": "[jsonl]",
            "rollout_batch_size": GROUPS,
            "num_return_sequences_in_group": SIZE,
            "response_length": CAP,
            "max_running_requests": 4 * GROUPS * SIZE,
            "async_generation_ratio": ratio,
            "user_defined_rollout_loop_cls": "given_lengths:GivenLengths",
            "actor_train.training_args.per_device_train_batch_size": 4,
            "actor_train.training_args.gradient_accumulation_steps": GROUPS * SIZE // 4,
        }
        if ratio:
            overrides["max_staleness"] = staleness
        place = ["--config_path", "tiny-sort", "--config_name", "tiny_sort"]
        command = [sys.executable, "examples/start_rlvr_pipeline.py", *place]
        environment = os.environ | {
            "TINY_SORT_DIR": str(data.absolute()),
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'benchmarks'}",
            "OMP_NUM_THREADS": "1",
            LENGTHS: json.dumps(WORK),
        }
        done = subprocess.run(
            [*command, *(f"{key}={value}" for key, value in overrides.items())],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{schedule}: the run failed:\n{done.stderr[-3000:]}")
        return [row for _, row in read_metrics(Path(output) / "metrics.jsonl")][SKIPPED_STEPS:]


def play(schedule: str, calibration: Sequence[Row], steps: int) -> Report:
    """The same in the simulator."""
    ratio, staleness = SCHEDULES[schedule]
    costs = Costs(**fit_trainer(calibration, 1), decode_s=fit_decode(calibration, 1), prefill_tokens_per_s=1e9)  # type: ignore[arg-type]
    setup = Setup(
        bounds=RolloutBounds(GROUPS, ahead_by(ratio, GROUPS), 1, staleness),
        group_size=SIZE,
        devices=Devices(1, 1),
        workload=LogNormal(**WORK),  # type: ignore[arg-type]
        costs=costs,
        max_running=4 * GROUPS * SIZE,
    )
    return simulate(setup, steps - SKIPPED_STEPS, warmup=SKIPPED_STEPS)


def median(rows: Sequence[Row], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def mean(rows: Sequence[Row], name: str) -> float:
    return statistics.fmean(row.get(name, 0.0) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory made by examples/tiny-sort/prepare.py")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=["synchronous", "r 1 S 2"])
    options = parser.parse_args()
    schedules = ["synchronous", *(name for name in options.schedules if name != "synchronous")]
    gains: dict[str, list[float]] = {name: [] for name in schedules}
    agreement: dict[str, list[float]] = {name: [] for name in schedules}
    calibration: Sequence[Row] | None = None
    for number in range(options.pairs):
        found = {name: run(options.data, name, options.steps) for name in schedules}
        synchronous = found["synchronous"]
        for name, rows in found.items():
            # the mean, since the steps of a run ahead are uneven; the simulator's is to be within 15 % of it
            seconds = mean(rows, "time/step_s")
            report = play(name, calibration or synchronous, options.steps)
            gains[name].append(mean(synchronous, "time/step_s") / seconds)
            agreement[name].append(report.step_s / seconds)
            line = {
                "round": number + 1,
                "schedule": name,
                "s/step": round(seconds, 3),
                "median": round(median(rows, "time/step_s"), 3),
                "x synchronous": round(gains[name][-1], 3),
                "staleness": round(mean(rows, "rollout/staleness_mean"), 3),
                "phases": {name: round(mean([phase_seconds(row) for row in rows], name), 3) for name in PHASES},
                "simulated s/step": round(report.step_s, 3),
                "simulated phases": {name: round(report.phase_s(name), 3) for name in PHASES},
                "simulated median": round(report.median_step_s, 3),
                "simulated staleness": round(report.token_staleness_mean, 3),
                "simulated / real": round(agreement[name][-1], 3),
            }
            print(json.dumps(line), flush=True)
        calibration = synchronous
    for name in schedules[1:]:
        print(f"{name} against synchronous: {describe_ratios(gains[name])}")
    for name in schedules:
        print(f"simulated / real seconds, {name}: {describe_ratios(agreement[name])}")


if __name__ == "__main__":
    main()
