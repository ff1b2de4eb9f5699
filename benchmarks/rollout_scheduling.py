"""Rollouts that run ahead against synchronous ones on two cores, and the simulator against both.

    python examples/tiny-sort/prepare.py --out output/tiny-sort
    python benchmarks/rollout_scheduling.py --data output/tiny-sort --results rounds.jsonl [--pairs 10] [--steps 24]

The whole pipeline, one engine and one trainer on a core each, with answers of given, heavy-tailed lengths
(given_lengths.py). Schedules take turns, so that a busy machine disturbs all alike; each is compared with the
synchronous run of its own round. The simulator gets its costs from the synchronous run of the round before (of the
first round: of the same), and how much trainer and engine slow each other down on the two cores from its run with r 1;
it plays the lengths that the runs had. Prompts, and answers that new weights find under way, cost a prefill only with
--prefill, since synchronous runs do not tell what that takes. What other processes took of the cores is told: it
slows a run ahead down, which needs both, more than a synchronous one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

import psutil

sys.path.append(str(Path(__file__).resolve().parents[1]))

from given_lengths import LENGTHS
from ratios import describe_ratios
from run_costs import Row, fit_decode, fit_trainer

from roll.configs.plan.batch_plan import RolloutBounds, ahead_by
from roll.run.tracking.local import METRICS_FILE, read_metrics
from roll.simulate.setup import Costs, Devices, LogNormal, Setup
from roll.simulate.simulation import Report, simulate
from roll.utils.timing import phase_seconds

REPOSITORY = Path(__file__).resolve().parents[1]
GROUPS, SIZE, CAP, PROMPT = 16, 4, 300, 14
WORK = {"median": 30.0, "common": 0.9, "single": 0.7, "cap": CAP, "prompt": PROMPT}
SCHEDULES = {"synchronous": (0.0, 0), "r 1 S 1": (1.0, 1), "r 1 S 2": (1.0, 2), "r .5 S 2": (0.5, 2)}
SKIPPED_STEPS = 4
AT_ONCE = 1e9  # tokens per second
MOST_LOST = 0.75  # of the speed
AHEAD = "r 1 S 2"  # tells how much trainer and engine slow each other down


def fit_beside(alone: Sequence[Row], together: Sequence[Row]) -> float:
    """Slowdown of training while engines sample: rows of a synchronous run, and of one that runs ahead.

    Example: 3 s where it was 2 s, with engines that were busy throughout: 1.5; for two thirds of the time: 2.
    """
    slower = _train_s_per_token(together) / _train_s_per_token(alone)
    busy = statistics.fmean(row["busy/actor_infer_fraction"] for row in together)
    lost = (1 - 1 / max(slower, 1.0)) / max(busy, 1e-9)
    return 1 / (1 - min(lost, MOST_LOST))


def _train_s_per_token(rows: Sequence[Row]) -> float:
    return sum(phase_seconds(row)["train_actor"] for row in rows) / sum(row["rollout/num_tokens"] for row in rows)


class Run(TypedDict):
    """`rows`: metrics of its steps. `others`: how many cores other processes took meanwhile."""

    rows: Sequence[Row]
    others: float


Round = Mapping[str, Run]  # by schedule
PHASES = ("rollout", "gather", "train_actor", "weight_sync", "other")


def run(data: Path, schedule: str, steps: int) -> Run:
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
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [*command, *(f"{key}={value}" for key, value in overrides.items())],
                cwd=REPOSITORY,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            metrics = Path(output) / METRICS_FILE
            used = [_used_at(step, metrics, process) for step in (SKIPPED_STEPS, steps - 1)]
            if process.wait():
                errors.seek(0)
                raise SystemExit(f"{schedule}: the run failed:\n{errors.read()[-3000:]}")
        wall, own, machine = (after - before for before, after in zip(*used, strict=True))
        rows = [row for _, row in read_metrics(metrics)][SKIPPED_STEPS:]
        return {"rows": rows, "others": max(0.0, machine - own) / wall}


def _used_at(step: int, metrics: Path, process: subprocess.Popen[bytes]) -> tuple[float, float, float]:
    """Once so many steps are done: the time, the CPU seconds of the run, and those of the whole machine."""
    while process.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < step):
        time.sleep(0.02)
    times = psutil.cpu_times()
    return time.perf_counter(), _cpu_seconds(process.pid), sum(times) - times.idle - times.iowait


def _cpu_seconds(pid: int) -> float:
    """Of a process and all that it has started."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:2])
    return total


def play(schedule: str, calibration: Round, steps: int, prefill: float) -> Report:
    """The same in the simulator."""
    ratio, staleness = SCHEDULES[schedule]
    synchronous, ahead = calibration["synchronous"]["rows"], calibration.get(AHEAD)
    costs = Costs(
        **fit_trainer(synchronous, 1),  # type: ignore[arg-type]
        decode_s=fit_decode(synchronous, 1),  # type: ignore[arg-type]
        prefill_tokens_per_s=prefill,
        beside=1.0 if ahead is None else fit_beside(synchronous, ahead["rows"]),
    )
    setup = Setup(
        bounds=RolloutBounds(GROUPS, ahead_by(ratio, GROUPS), 1, staleness),
        group_size=SIZE,
        devices=Devices(1, 1),
        workload=LogNormal(**WORK),  # type: ignore[arg-type]
        costs=costs,
        max_running=4 * GROUPS * SIZE,
    )
    return simulate(setup, steps, warmup=SKIPPED_STEPS)


def mean(rows: Sequence[Row], name: str) -> float:
    return statistics.fmean(row.get(name, 0.0) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory made by examples/tiny-sort/prepare.py")
    parser.add_argument("--pairs", type=int, default=10, help="rounds to run; 0: only those that --results has")
    parser.add_argument("--results", type=Path, required=True, help="file of rounds, one a line; new ones are added")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=["synchronous", "r 1 S 2"])
    parser.add_argument("--prefill", type=float, default=AT_ONCE, help="tokens per second. Default: all at once")
    options = parser.parse_args()
    if options.pairs and options.data is None:
        parser.error("--data is needed, but for --pairs 0")
    schedules = ["synchronous", *(name for name in options.schedules if name != "synchronous")]
    for _ in range(options.pairs):
        found = {name: run(options.data, name, options.steps) for name in schedules}
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
    with options.results.open(encoding="utf-8") as file:
        rounds = [json.loads(line) for line in file]
    compare(rounds, options.prefill)


def compare(rounds: Sequence[Round], prefill: float) -> None:
    gains: dict[str, list[float]] = {}
    agreement: dict[str, list[float]] = {}
    for number, found in enumerate(rounds):
        calibration = rounds[max(number - 1, 0)]
        synchronous = mean(found["synchronous"]["rows"], "time/step_s")
        for name, one in found.items():
            # the mean, since the steps of a run ahead are uneven; the simulator's is to be within 15 % of it
            rows, seconds = one["rows"], mean(one["rows"], "time/step_s")
            report = play(name, calibration, len(rows), prefill)
            gains.setdefault(name, []).append(synchronous / seconds)
            agreement.setdefault(name, []).append(report.step_s / seconds)
            line = {
                "round": number + 1,
                "schedule": name,
                "cores of others": round(one["others"], 2),
                "s/step": round(seconds, 3),
                "x synchronous": round(gains[name][-1], 3),
                "staleness": round(mean(rows, "rollout/staleness_mean"), 3),
                "phases": {phase: round(mean([phase_seconds(row) for row in rows], phase), 3) for phase in PHASES},
                "simulated s/step": round(report.step_s, 3),
                "simulated staleness": round(report.staleness_mean, 3),
                "simulated phases": {phase: round(report.phase_s(phase), 3) for phase in PHASES},
                "simulated / real": round(agreement[name][-1], 3),
            }
            print(json.dumps(line), flush=True)
    for name, found in gains.items():
        if name != "synchronous":
            print(f"{name} against synchronous: {describe_ratios(found)}")
    for name, found in agreement.items():
        print(f"simulated / real seconds, {name}: {describe_ratios(found)}")


if __name__ == "__main__":
    main()
