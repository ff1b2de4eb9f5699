"""The layout that `roll fit` chooses against eight that are measured, on the CPUs of this machine.

    python benchmarks/fit_layouts.py --model wide [--rounds 2] [--steps 10]     (smollm2: with --smollm2 FILE.gguf)

The eight are the trainers fsdp2 and DeepSpeed with ZeRO 0, 2 and 3, with rollouts ahead and without, in the micro batch
of the YAML. `roll fit` may choose another micro batch, which is run beside them. Rounds are interleaved; a layout's
seconds are the wall time between the end of step 2 and the last, by step, the least of its rounds; CPU seconds are
those of engine and trainer, which other programs on the machine hardly change.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml
from forecast import Job, _by_role, _environment, _rows, prepare

from roll.configs.load.loader import compose_tree, yaml_at
from roll.run.kind import kind_of
from roll.simulate.forecast.fit import _TRAINERS, Search, _merged

SKIPPED, LIMIT_S = 2, 600
CHOICE, NAMES = "the choice of fit", ("fsdp2", "deepspeed 0", "deepspeed 2", "deepspeed 3")
JOBS = {"wide": Job("wide", 32, 4), "tiny": Job("tiny", 12, 32, micro=32), "smollm2": Job("smollm2", 16, 2)}


def eight() -> dict[str, Mapping[str, Any]]:
    made: dict[str, Mapping[str, Any]] = {}
    for name, trainer in zip(NAMES, _TRAINERS, strict=True):
        for ratio in (0, 1):
            keys = {"actor_train": {"strategy_args": dict(trainer)}, "async_generation_ratio": ratio}
            made[name + (", ahead" if ratio else "")] = keys
    return made


def measure(tree: dict[str, Any], file: Path, steps: int) -> tuple[float, float]:
    """Wall and CPU seconds of a step after the first ones; infinite where the run did not get there in time."""
    file.write_text(yaml.safe_dump(tree))
    metrics = Path(tree["output_dir"]) / "logs" / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    command = [sys.executable, "-m", "roll", "run", str(file), "overwrite_output_dir=true"]
    with file.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(command, cwd=file.parent, env=_environment(), stdout=log, stderr=log)
    marks, end = [], time.monotonic() + LIMIT_S
    for step in (SKIPPED, steps):
        while len(_rows(metrics)) < step and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        if len(_rows(metrics)) >= step:
            marks.append((time.monotonic(), sum(_by_role(psutil.Process(process.pid)).values())))
    process.terminate()
    process.wait()
    if len(marks) < 2:
        return float("inf"), float("inf")
    (wall0, cpu0), (wall1, cpu1) = marks
    return (wall1 - wall0) / (steps - SKIPPED), (cpu1 - cpu0) / (steps - SKIPPED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(JOBS), default="wide")
    parser.add_argument("--smollm2", default="", help="SmolLM2-135M-Instruct: a GGUF file or a directory")
    parser.add_argument("--folder", default="output/fit")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    folder, job = Path(options.folder).absolute(), JOBS[options.model]
    folder.mkdir(parents=True, exist_ok=True)
    tree = job.tree(folder, prepare(folder, options.smollm2)) | {"max_steps": options.steps + 1}
    base = folder / "base.yaml"
    base.write_text(yaml.safe_dump(tree))
    raw = compose_tree(*yaml_at(str(base)), ())
    search = Search(raw, kind_of(raw.tree), 0, 1, None)
    best = search.best()
    layouts = eight() | {CHOICE: best[0].keys}
    print(f"{CHOICE}: {best[0].text}", flush=True)
    forecasts = {name: search._try(search._with_whole_updates(dict(keys))) for name, keys in layouts.items()}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in layouts}
    for number in range(options.rounds):
        for name, keys in layouts.items():
            place = folder / name.replace(" ", "_").replace(",", "")
            made = _merged(tree, keys) | {"output_dir": str(place)}
            found = measure(made, folder / f"{place.name}.yaml", options.steps)
            seconds[name].append(found)
            print(
                f"round {number + 1}, {name}: {found[0]:.3f} s, {found[1]:.3f} CPU s, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    print("| layout | forecast s | s | CPU s |\n|---|---|---|---|")
    for name, found in sorted(seconds.items(), key=lambda item: min(item[1])):
        layout = forecasts[name]
        said = f"{layout.forecast.step_s:.3g}" if layout else "refused"
        print(f"| {name} | {said} | {min(wall for wall, _ in found):.3g} | {min(cpu for _, cpu in found):.3g} |")
    for place, what in enumerate(("wall", "CPU")):
        of_each = {name: min(each[place] for each in found) for name, found in seconds.items()}
        chosen = of_each.pop(CHOICE)
        print(f"{CHOICE} takes {chosen / min(of_each.values()):.2f} x the best of eight, in {what} seconds")


if __name__ == "__main__":
    main()
