"""What a step of the tiny-sort demo costs beside the same mathematics without roll.

    python examples/tiny-sort/prepare.py --out output/tiny-sort
    python benchmarks/rlvr_step.py --data output/tiny-sort [--steps 40] [--rounds 3] [--trl_python path/to/python]

(a) benchmarks/plain_grpo.py: one process, one thread, no framework. (b) TRL's GRPOTrainer on the same model, data and
batch (benchmarks/trl_grpo.py), in a virtual environment of its own that has trl installed; left out without
--trl_python. (a) runs before and after each of the others, which are counted in multiples of the mean of the two, so
that a machine whose speed changes does little harm; the figures are medians over the rounds of the mean over the steps
after the first five, with the least and the most of the multiples. CPU seconds are those of all processes of a run.
--only "roll, 1 rank" TRL leaves the others out. "roll, ahead" is examples/tiny-sort/tiny_sort_async.yaml.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
SKIPPED_STEPS = 5

Run = dict[str, float]


def run_roll(data: Path, steps: int, ranks: int, *more: str) -> Run:
    """Wall and CPU seconds per step of the example, and its phases."""
    with tempfile.TemporaryDirectory() as output:
        overrides = [
            f"output_dir={output}",
            f"logging_dir={output}",
            f"max_steps={steps}",
            "eval_steps=-1",
            "save_steps=-1",
        ]
        overrides += ["track_with=[jsonl]", *more]
        if ranks == 2:
            overrides += ["num_gpus_per_node=3", "actor_train.device_mapping=[0,1]", "actor_infer.device_mapping=[2]"]
            overrides += ["actor_train.training_args.gradient_accumulation_steps=2"]
        command = [
            sys.executable,
            "examples/start_rlvr_pipeline.py",
            "--config_path",
            "tiny-sort",
            "--config_name",
            "tiny_sort",
        ]
        environment = os.environ | {
            "TINY_SORT_DIR": str(data.absolute()),
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
        }
        process = subprocess.Popen(
            command + overrides,
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        metrics = Path(output) / "metrics.jsonl"
        cpu_at = {SKIPPED_STEPS: 0.0, steps - 1: 0.0}
        for step in cpu_at:
            while not metrics.exists() or metrics.read_text().count("\n") < step:
                if process.poll() is not None:
                    raise SystemExit(f"the run failed:\n{process.stderr.read() if process.stderr else ''}")
                time.sleep(0.01)
            cpu_at[step] = cpu_seconds(process.pid)
        process.communicate()
        rows = [json.loads(line) for line in metrics.read_text().splitlines()][SKIPPED_STEPS:]
    result = {name: statistics.mean(row[name] for row in rows) for name in rows[0] if name.startswith("time/")}
    result["wall_s"] = result["time/step_s"]
    result["cpu_s"] = (cpu_at[steps - 1] - cpu_at[SKIPPED_STEPS]) / (steps - 1 - SKIPPED_STEPS)
    return result


def cpu_seconds(pid: int) -> float:
    """CPU time so far of a process and all its descendants."""
    total = 0.0
    parent = psutil.Process(pid)
    for process in (parent, *parent.children(recursive=True)):
        try:
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


def run_script(python: str, script: str, data: Path, steps: int) -> Run:
    """A yardstick: a script that prints one JSON line at the end."""
    command = [python, f"benchmarks/{script}", "--data", str(data.absolute()), "--steps", str(steps)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{script} failed:\n{done.stderr[-2000:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return {"wall_s": result["wall_s_per_step"], "cpu_s": result["cpu_s_per_step"]} | {
        f"time/{name}_s": seconds for name, seconds in result.get("phases_s_per_step", {}).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory made by examples/tiny-sort/prepare.py")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trl_python", help="python of a virtual environment that has trl")
    parser.add_argument("--only", nargs="+", default=[], help="contestants beside plain")
    arguments = parser.parse_args()
    plain = partial(run_script, sys.executable, "plain_grpo.py", arguments.data, arguments.steps)
    roll = partial(run_roll, arguments.data, arguments.steps)
    contestants: dict[str, Callable[[], Run]] = {
        "roll, 1 rank": lambda: roll(1),
        "roll, timeline": lambda: roll(1, "profiler_timeline=true"),
        "roll, 2 ranks": lambda: roll(2),
        "roll, ahead": lambda: roll(1, "async_generation_ratio=1", "max_staleness=2"),
    }
    if arguments.trl_python:
        contestants["TRL"] = lambda: run_script(arguments.trl_python, "trl_grpo.py", arguments.data, arguments.steps)
    if unknown := set(arguments.only) - contestants.keys():
        parser.error(f"--only: {', '.join(sorted(unknown))}; there are {', '.join(contestants)}")
    chosen = {name: run for name, run in contestants.items() if name in (arguments.only or contestants)}
    yardsticks = [told("plain", plain())]
    results: dict[str, list[Run]] = {name: [] for name in chosen}
    multiples: dict[str, list[Run]] = {name: [] for name in chosen}
    for number in range(arguments.rounds):
        for name, contestant in chosen.items():
            results[name].append(told(f"round {number + 1}, {name}", contestant()))
            yardsticks.append(told("plain", plain()))
            around = {key: statistics.mean(run[key] for run in yardsticks[-2:]) for key in ("wall_s", "cpu_s")}
            multiples[name].append({key: results[name][-1][key] / value for key, value in around.items()})
    heads = ("wall s/step", "x plain", "least", "most", "CPU s/step", "x plain")
    print(f"{'':16}{''.join(f'{head:>12}' for head in heads)}   phases, ms")
    for name, runs in ({"plain": yardsticks} | results).items():
        values = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        times = multiples.get(name, [{"wall_s": 1.0, "cpu_s": 1.0}])
        wall, cpu = ([each[key] for each in times] for key in ("wall_s", "cpu_s"))
        spread = (statistics.median(wall), min(wall), max(wall))
        shown = (values["wall_s"], *spread, values["cpu_s"], statistics.median(cpu))
        phases = {key[5:-2]: value for key, value in values.items() if key.startswith("time/") and key != "time/step_s"}
        split = ", ".join(f"{phase} {1000 * value:.0f}" for phase, value in phases.items() if value >= 0.0005)
        print(f"{name:16}{''.join(f'{value:12.3f}' for value in shown)}   {split}")


def told(name: str, run: Run) -> Run:
    print(f"{name}: {run['wall_s']:.3f} s per step", file=sys.stderr, flush=True)
    return run


if __name__ == "__main__":
    main()
