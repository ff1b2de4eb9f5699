"""The forecast against measured steps of twenty small jobs on the CPUs of this machine.

    python benchmarks/forecast.py predict --model SMOLLM2.gguf    # writes reports/forecast.json: commit it
    python benchmarks/forecast.py measure --model SMOLLM2.gguf    # runs the jobs and adds what a step took
    python benchmarks/forecast.py table                           # prints the table of docs/forecast.md

Three models in fp32 or bf16: one of 118 thousand parameters and one of 21 million with random weights, and
SmolLM2-135M-Instruct (--model: a GGUF file or a folder). Rewards are worth nothing here: every row is computed
(`skip_idle_rows: false`), and but for three jobs responses are as long as they may be (`ignore_eos`). A step is the
median of those after the first two. Prediction and measurement should be made when nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "reports" / "forecast.json"
PREPARE = REPOSITORY / "examples" / "tiny-sort" / "prepare.py"
WIDTHS = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8}
LIMIT_S = 170


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
    steps: int = 6
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
    Job("tiny", 12, 32, micro=64, free=True),
    Job("tiny", 12, 32, "deepspeed_train", micro=64),
    Job("tiny", 48, 16, micro=32),
    Job("tiny", 96, 8, "deepspeed_train", micro=16),
    Job("tiny", 24, 32, micro=64, ranks=2),
    Job("tiny", 24, 32, "deepspeed_train", micro=64, more=AHEAD),
    Job("tiny", 24, 32, micro=64, more=OLD),
    Job("wide", 32, 8),
    Job("wide", 128, 4),
    Job("wide", 64, 8, "deepspeed_train"),
    Job("wide", 64, 8, ranks=2),
    Job("wide", 64, 8, more=APART),
    Job("wide", 64, 4, more=AHEAD),
    Job("wide", 64, 8, dtype="bf16", free=True),
    Job("smollm2", 16, 2, steps=4),
    Job("smollm2", 24, 4, dtype="bf16", steps=4, free=True),
    Job("smollm2", 32, 2, "deepspeed_train", steps=4),
    Job("smollm2", 32, 2, steps=4, more=CHECKPOINTING),
    Job("smollm2", 64, 2, dtype="bf16", steps=4),
    Job("smollm2", 24, 2, steps=4, more=APART),
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

    results: dict[str, Any] = {}
    for job in JOBS:
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


def measure(folder: Path, models: Mapping[str, str]) -> None:
    results = json.loads(RESULTS.read_text())
    for job in JOBS:
        file = _written(job, folder, models)
        command = [sys.executable, "-m", "roll", "run", str(file), "overwrite_output_dir=true"]
        with suppress(subprocess.TimeoutExpired):  # then the steps that are done count
            subprocess.run(command, env=_environment(), cwd=folder, capture_output=True, timeout=LIMIT_S, check=False)
        steps = list(_steps(folder / job.name / "logs" / "metrics.jsonl"))
        counted = steps[2:] or steps[1:]
        if counted:
            results[job.name]["measured_s"] = round(statistics.median(sum(step.values()) for step in counted), 3)
            names = dict.fromkeys(name for step in counted for name in step)
            medians = {name: statistics.median(step.get(name, 0.0) for step in counted) for name in names}
            results[job.name]["measured"] = {name: round(value, 4) for name, value in medians.items()}
        print(job.name, results[job.name].get("forecast_s"), results[job.name].get("measured_s"), flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def _steps(file: Path) -> Iterator[dict[str, float]]:
    from roll.utils.timing import phase_seconds

    for line in file.read_text().splitlines() if file.exists() else ():
        if seconds := phase_seconds(json.loads(line)):
            yield dict(seconds)


def table() -> None:
    rows = {name: row for name, row in json.loads(RESULTS.read_text()).items() if "measured_s" in row}
    print("| job | forecast s | bar | measured s | measured / forecast |\n|---|---|---|---|---|")
    for name, row in rows.items():
        ratio = row["measured_s"] / row["forecast_s"]
        miss = "" if abs(ratio - 1) <= row["error"] else " (outside)"
        print(
            f"| `{name}` | {row['forecast_s']:.3g} | {row['error']:.0%} | {row['measured_s']:.3g} | {ratio:.2f}{miss} |"
        )
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
    options = parser.parse_args()
    if options.what == "table":
        table()
        return
    sys.path.insert(0, str(REPOSITORY))
    folder = Path(options.folder).absolute()
    {"predict": predict, "measure": measure}[options.what](folder, prepare(folder, options.model))


if __name__ == "__main__":
    main()
