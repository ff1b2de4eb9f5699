"""The forecast against measured steps of small jobs on the CPUs of this machine.

    python benchmarks/forecast.py predict --model SMOLLM2.gguf    # adds new jobs to reports/forecast.json: commit it
    python benchmarks/forecast.py measure --model SMOLLM2.gguf    # runs the jobs and adds what a step took
    python benchmarks/forecast.py table                           # prints the table of reports/forecast.md

Three models in fp32 or bf16: one of 118 thousand parameters and one of 21 million with random weights, and
SmolLM2-135M-Instruct (--model: a GGUF file or a folder). Rewards are worth nothing here: every row is computed
(`skip_idle_rows: false`), and but for three jobs responses are as long as they may be (`ignore_eos`). Each worker has
one thread. What was measured already is not run again; `--minutes` ends a measurement, another one goes on.

"measured" are CPU seconds of engine and trainer (of one rank) in a step after the first, which other programs on the
machine hardly change. "wall" is the median of those steps: with rollouts ahead it is what is compared, and it means
something only if nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "reports" / "forecast.json"
PREPARE = REPOSITORY / "examples" / "tiny-sort" / "prepare.py"
WIDTHS = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8}
LIMIT_S = 400
ROLES = {"actor_infer": "rollout", "actor_train": "train"}


@dataclass(frozen=True)
class Job:
    """`groups` x 8 responses of `length` tokens, trained on in micro batches of `micro` rows by `ranks` ranks."""

    model: str
    length: int
    groups: int
    trainer: str = "fsdp2_train"
    micro: int = 8
    ranks: int = 1
    dtype: str = "fp32"
    steps: int = 5
    free: bool = False  # responses may end before
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        marks = [self.model, self.trainer.removesuffix("_train"), f"{self.groups}x8x{self.length}"]
        marks += [f"{self.ranks}_ranks"] if self.ranks > 1 else []
        marks += [self.dtype] if self.dtype != "fp32" else []
        marks += ["free"] if self.free else []
        return "-".join([*marks, *(str(key).rpartition(".")[2] for key in self.more)])

    def tree(self, folder: Path, models: Mapping[str, str]) -> dict[str, Any]:
        zero = {"strategy_config": {"zero_optimization": {"stage": 0}}} if self.trainer.startswith("deep") else {}
        rows = "sums" if self.model == "smollm2" else "sort"
        updates = self.groups * 8 // self.micro // self.ranks
        tree: dict[str, Any] = {
            "exp_name": self.name,
            "output_dir": str(folder / self.name),
            "pretrain": models[self.model],
            "num_gpus_per_node": 4,
            "max_steps": self.steps,
            "eval_steps": -1,
            "save_steps": -1,
            "track_with": ["jsonl"],
            "rollout_batch_size": self.groups,
            "num_return_sequences_in_group": 8,
            "prompt_length": 96,
            "response_length": self.length,
            "skip_idle_rows": False,
            "system_envs": {"OMP_NUM_THREADS": "1"},
            "actor_train": {
                "model_args": {"dtype": self.dtype, "disable_gradient_checkpointing": True},
                "training_args": {
                    "learning_rate": 1e-6,
                    "per_device_train_batch_size": self.micro,
                    "gradient_accumulation_steps": updates,
                },
                "data_args": {"file_name": str(folder / rows / "train.jsonl")},
                "strategy_args": {"strategy_name": self.trainer, **zero},
                "device_mapping": list(range(self.ranks)),
            },
            "actor_infer": {
                "model_args": {"dtype": self.dtype},
                "generating_args": {"ignore_eos": not self.free},
                "strategy_args": {"strategy_name": "hf_infer"},
                "device_mapping": [self.ranks],
            },
            "rewards": {"sort": {"reward": "exact_match", "world_size": 1}},
        }
        for path, value in self.more.items():
            *sections, key = path.split(".")
            place = tree
            for section in sections:
                place = place.setdefault(section, {})
            place[key] = value
        return tree


CHECKPOINTING = {"actor_train.model_args.disable_gradient_checkpointing": False}
APART = {"actor_train.use_prefix_sharing": "off"}
AHEAD = {"async_generation_ratio": 1}
OLD = {"enable_old_logprobs_recompute": True}
JOBS = (
    Job("smollm2", 16, 2, steps=3),
    Job("tiny", 12, 32, micro=64, free=True),
    Job("wide", 32, 8),
    Job("smollm2", 24, 4, dtype="bf16", steps=3, free=True),
    Job("tiny", 12, 32, "deepspeed_train", micro=64),
    Job("wide", 128, 4),
    Job("smollm2", 32, 2, "deepspeed_train", steps=3),
    Job("tiny", 48, 16, micro=32),
    Job("wide", 64, 8, "deepspeed_train"),
    Job("smollm2", 32, 2, steps=3, more=CHECKPOINTING),
    Job("tiny", 96, 8, "deepspeed_train", micro=16),
    Job("wide", 64, 8, ranks=2),
    Job("smollm2", 64, 2, dtype="bf16", steps=3),
    Job("tiny", 24, 32, micro=64, ranks=2),
    Job("wide", 64, 8, more=APART),
    Job("smollm2", 24, 2, steps=3, more=APART),
    Job("tiny", 24, 32, "deepspeed_train", micro=64, more=AHEAD),
    Job("wide", 64, 4, more=AHEAD),
    Job("tiny", 24, 32, micro=64, more=OLD),
    Job("wide", 64, 8, dtype="bf16", free=True),
    # forecast after the twenty before were measured, and the shares of CPUs mended
    Job("smollm2", 48, 2, "deepspeed_train", dtype="bf16", steps=3),
    Job("wide", 48, 8, dtype="bf16"),
    Job("tiny", 36, 16, "deepspeed_train", micro=32),
    Job("smollm2", 20, 4, steps=3),
    Job("wide", 96, 4, "deepspeed_train", dtype="bf16"),
    Job("tiny", 64, 8, micro=16),
    Job("wide", 32, 8, more=AHEAD),
    Job("tiny", 16, 32, micro=64, more=AHEAD),
)


def prepare(folder: Path, smollm2: str) -> dict[str, str]:
    """Models and rows of the jobs, where they are not there."""
    models = {"tiny": str(folder / "sort" / "model"), "wide": str(folder / "wide"), "smollm2": smollm2}
    if (folder / "sums" / "train.jsonl").exists():
        return models
    command = [sys.executable, str(PREPARE), "--steps", "0", "--out", str(folder / "sort")]
    subprocess.run(command, env=_environment(), check=True, capture_output=True)
    code = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config\n"
        "tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        f"config = Qwen2Config(vocab_size=len(tokenizer), **{WIDTHS!r}, num_key_value_heads=8)\n"
        "AutoModelForCausalLM.from_config(config).save_pretrained(sys.argv[2])\n"
        "tokenizer.save_pretrained(sys.argv[2])"
    )
    subprocess.run(
        [sys.executable, "-c", code, models["tiny"], models["wide"]],
        env=_environment(),
        check=True,
        capture_output=True,
    )
    rows = [{"prompt": f"What is {i % 41} + {i % 37}?", "ground_truth": str(i % 41 + i % 37)} for i in range(500)]
    (folder / "sums").mkdir(exist_ok=True)
    (folder / "sums" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return models


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(REPOSITORY)}


def predict(folder: Path, models: Mapping[str, str]) -> None:
    from roll.configs.load.loader import compose_tree, resolve_tree, yaml_at
    from roll.run.kind import kind_of
    from roll.run.start.load import check
    from roll.simulate.forecast.forecast import forecast

    results: dict[str, Any] = json.loads(RESULTS.read_text())
    for job in JOBS:
        if job.name in results:
            continue
        file = _written(job, folder, models)
        raw = compose_tree(*yaml_at(str(file)), ())
        spec = kind_of(raw.tree)
        loaded = check(spec, resolve_tree(raw, spec.config_class()))
        found = forecast(loaded.config, loaded.plan)
        if isinstance(found, str):
            raise SystemExit(f"{job.name}: {found}")
        phases = {name: round(seconds, 4) for name, seconds in found.phases.items()}
        results[job.name] = {"forecast_s": round(found.step_s, 3), "error": round(found.error, 3), "phases": phases}
        print(job.name, results[job.name], flush=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def _written(job: Job, folder: Path, models: Mapping[str, str]) -> Path:
    file = folder / f"{job.name}.yaml"
    file.write_text(yaml.safe_dump(job.tree(folder, models)))
    return file


def measure(folder: Path, models: Mapping[str, str], minutes: float) -> None:
    results, end = json.loads(RESULTS.read_text()), time.monotonic() + 60 * minutes
    for job in JOBS:
        if "measured_s" in results[job.name] or time.monotonic() > end:
            continue
        file, metrics = _written(job, folder, models), folder / job.name / "logs" / "metrics.jsonl"
        seconds = _cpu_seconds(file, metrics, job.steps)
        walls = [row["time/step_s"] for row in _rows(metrics)][1:]
        if seconds and walls:
            parts = {"rollout": seconds["rollout"], "train": seconds["train"] / job.ranks}
            results[job.name] |= {name: round(value, 3) for name, value in parts.items()}
            results[job.name]["wall_s"] = round(statistics.median(walls), 3)
            is_ahead = job.more is AHEAD
            results[job.name]["measured_s"] = round(statistics.median(walls) if is_ahead else sum(parts.values()), 3)
        print(job.name, results[job.name], flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def _cpu_seconds(file: Path, metrics: Path, steps: int) -> dict[str, float]:
    """CPU seconds of a step after the first, by role; empty where the run did not end in time."""
    import psutil

    metrics.unlink(missing_ok=True)
    command = [sys.executable, "-m", "roll", "run", str(file), "overwrite_output_dir=true"]
    log = file.with_suffix(".log").open("w")
    process = subprocess.Popen(command, cwd=file.parent, env=_environment(), stdout=log, stderr=log)
    marks, end = [], time.monotonic() + LIMIT_S
    for step in (1, steps):
        while len(_rows(metrics)) < step and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        if len(_rows(metrics)) >= step:
            marks.append(_by_role(psutil.Process(process.pid)))
    process.terminate()
    process.wait()
    if len(marks) < 2:
        return {}
    return {part: (marks[1][part] - marks[0][part]) / (steps - 1) for part in marks[0]}


def _by_role(parent: Any) -> dict[str, float]:
    import psutil

    total = dict.fromkeys(ROLES.values(), 0.0)
    for process in parent.children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            part = ROLES.get(process.environ().get("ROLL_ROLE", ""))
            if part:
                times = process.cpu_times()
                total[part] += times.user + times.system
    return total


def _rows(file: Path) -> list[dict[str, float]]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [row for row in map(json.loads, lines) if "time/step_s" in row]


def table() -> None:
    rows = {name: row for name, row in json.loads(RESULTS.read_text()).items() if "measured_s" in row}
    print("| job | forecast s | bar | measured s | measured / forecast | since |\n|---|---|---|---|---|---|")
    for name, row in rows.items():
        ratio = row["measured_s"] / row["forecast_s"]
        miss = "" if abs(ratio - 1) <= row["error"] else " (outside)"
        since = f"{row['measured_s'] / row['since_s']:.2f}" if "since_s" in row else ""
        figures = [f"{row['forecast_s']:.3g}", f"{row['error']:.0%}", f"{row['measured_s']:.3g}", f"{ratio:.2f}{miss}"]
        print("|", " | ".join([f"`{name}`", *figures, since]), "|")
    forecasts, measured = ([row[key] for row in rows.values()] for key in ("forecast_s", "measured_s"))
    errors = [abs(b / a - 1) for a, b in zip(forecasts, measured, strict=True)]
    inside = sum(error <= row["error"] for error, row in zip(errors, rows.values(), strict=True))
    print(
        f"\nrank correlation {correlation(forecasts, measured):.2f}, median error {statistics.median(errors):.0%}, "
        f"{inside} of {len(rows)} within the bar"
    )


def correlation(first: list[float], second: list[float]) -> float:
    """Spearman's rank correlation."""
    ranks = ([sorted(values).index(value) for value in values] for values in (first, second))
    return statistics.correlation(*ranks) if len(first) > 1 else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("predict", "measure", "table"))
    parser.add_argument("--model", default="", help="SmolLM2-135M-Instruct: a GGUF file or a folder")
    parser.add_argument("--folder", default="output/forecast", help="for models, rows and runs")
    parser.add_argument("--minutes", type=float, default=60.0, help="no job is started after so many")
    options = parser.parse_args()
    if options.what == "table":
        table()
        return
    sys.path.insert(0, str(REPOSITORY))
    folder = Path(options.folder).absolute()
    models = prepare(folder, options.model)
    if options.what == "predict":
        predict(folder, models)
    else:
        measure(folder, models, options.minutes)


if __name__ == "__main__":
    main()
