"""The forecast beside steps of large runs that others published. Nothing is tuned to them.

    python benchmarks/forecast_published.py > reports/forecast_published.md

forecast_published.yaml has their figures with sources. Each run is planned here with the same model, GPUs, samples,
updates and sizes of engines, fsdp2_train, and old log-probs by a pass; the published lengths are given as those of an
earlier run. It needs no GPU and no weights.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from roll.configs.load.loader import compose_tree, resolve_tree, yaml_at
from roll.configs.memory.flops import gpu_of, training_flops
from roll.run.kind import kind_of
from roll.run.records.scorecard import Forecast
from roll.run.start.load import check
from roll.run.start.memory_report import gather_facts
from roll.simulate.forecast.forecast import forecast

DATA = Path(__file__).with_suffix(".yaml")
TAIL = 3.0  # times the mean: the longest response, where only the mean is published
HEAD = """# Forecasts beside steps that others published

Made by `python benchmarks/forecast_published.py` from `benchmarks/forecast_published.yaml`, which has the sources.
Nothing was tuned to these figures. The forecast is for `fsdp2_train`, vLLM and the published mean lengths, of which the
longest response is taken as three times the mean; theirs trained with what the table says. Ratios are published /
forecast; MFU counts no recomputation.
"""


def tree_of(row: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    total, samples = row["gpus"], row["groups"] * row["group_size"]
    train = row.get("trains_on", total)
    sharding = row.get("sequence_parallel", 1)
    micro = max(1, samples // row["updates"] * sharding // train)
    micro = min(micro, row.get("micro_batch", 2))
    return {
        "exp_name": "published",
        "pretrain": str(folder / "model"),
        "output_dir": str(folder / "out"),
        "platform": "cuda",
        "gpu_name": row["gpu"],
        "num_nodes": -(-total // 8),
        "num_gpus_per_node": min(8, total),
        "max_steps": 100,
        "eval_steps": -1,
        "save_steps": -1,
        "rollout_batch_size": row["groups"],
        "num_return_sequences_in_group": row["group_size"],
        "prompt_length": row["longest"][0],
        "response_length": row["longest"][1],
        "skip_idle_rows": False,
        "enable_old_logprobs_recompute": True,
        "async_generation_ratio": row.get("ahead", 0),
        "actor_train": {
            "model_args": {"dtype": "bf16", "ulysses_size": sharding},
            "training_args": {
                "learning_rate": 1e-6,
                "per_device_train_batch_size": micro,
                "gradient_accumulation_steps": max(1, samples // row["updates"] * sharding // train // micro),
            },
            "data_args": {"file_name": str(folder / "rows.jsonl")},
            "strategy_args": {"strategy_name": "fsdp2_train"},
            "device_mapping": f"list(range(0,{train}))",
            "infer_batch_size": 8,
        },
        "actor_infer": {
            "model_args": {"dtype": "bf16"},
            "strategy_args": {"strategy_name": "vllm", "strategy_config": {"tensor_parallel_size": row["tensor"]}},
            "device_mapping": f"list(range({train if train < total else 0},{total}))",
        },
        "rewards": {"task": {"reward": "exact_match"}},
    }


def forecast_of(row: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[Forecast | str, float]:
    """The forecast or why there is none, and FLOPs of a step's training."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(model))
        (folder / "rows.jsonl").write_text("")
        tree = tree_of(row, folder)
        prompt, mean = row["prompt"], row["response"]
        longest = min(row["longest"][1], TAIL * mean)
        metrics = {"response_length_mean": mean, "response_length_max": longest, "prompt_length_mean": prompt}
        logs = folder / "out" / "logs"
        logs.mkdir(parents=True)
        line = {"step": 1, **{f"rollout/{name}": value for name, value in metrics.items()}}
        (logs / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        (folder / "run.yaml").write_text(yaml.safe_dump(tree))
        raw = compose_tree(*yaml_at(str(folder / "run.yaml")), ())
        spec = kind_of(raw.tree)
        loaded = check(spec, resolve_tree(raw, spec.config_class()))
        facts = gather_facts(loaded.config, loaded.plan, None)[0]
        rows = row["groups"] * row["group_size"]
        pairs = rows * (prompt + mean) ** 2 / 2
        flops = training_flops(facts["actor_train"].shape, rows * (prompt + mean), pairs)
        return forecast(loaded.config, loaded.plan, facts), flops


def main() -> None:
    data = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    print(HEAD)
    print("| source | what |\n|---|---|")
    for source, text in data["sources"].items():
        print(f"| `{source}` | {text} |")
    columns = ["source", "model", "GPUs", "trainer", "tokens a row", "step s", "forecast s", "step", "rollout"]
    columns += ["training", "MFU, theirs and ours"]
    print("\n|", " | ".join(columns), "|\n|" + "---|" * len(columns))
    inside, ratios = 0, list[float]()
    for row in data["runs"]:
        found, flops = forecast_of(row, data["models"][row["model"]])
        if isinstance(found, str):
            raise SystemExit(f"{row['model']}, {row['gpus']} {row['gpu']}: {found}")
        gpu = gpu_of(row["gpu"])
        assert gpu is not None
        peak = gpu.tflops * 1e12 * row.get("trains_on", row["gpus"])
        seconds = dict(found.phases)
        if "sampled" in row:
            more = {"groups": row["groups"] * row["sampled"], "updates": row["updates"] * row["sampled"]}
            larger, _ = forecast_of({**row, **more}, data["models"][row["model"]])
            assert isinstance(larger, Forecast)
            seconds["rollout"] = larger.phases["rollout"]
        train, step_s = seconds["train_actor"], sum(seconds.values())
        ratio = row["step_s"] / step_s
        within = abs(ratio - 1) <= found.error
        inside, ratios = inside + within, [*ratios, ratio]
        phases = (("rollout_s", "rollout"), ("train_s", "train_actor"))
        parts = [f"{row[name] / seconds[phase]:.2f}" if name in row else "" for name, phase in phases]
        mfu = f"{row['mfu']:.2f}, " if "mfu" in row else ""
        cells = [
            row["source"],
            row["model"] + (f", {row['note']}" if "note" in row else ""),
            f"{row['gpus']} {row['gpu']}",
            row["trainer"],
            f"{row['prompt'] + row['response']:,.0f}",
            f"{row['step_s']:.4g}",
            f"{float(f'{step_s:.3g}'):g} +-{found.error:.0%}",
            f"{ratio:.2f}" + ("" if within else " (outside)"),
            *parts,
            f"{mfu}{flops / train / peak:.2f}",
        ]
        print("|", " | ".join(cells), "|")
    error = statistics.median(abs(ratio - 1) for ratio in ratios)
    print(
        f"\n{inside} of {len(ratios)} within the bar; median error {error:.0%}; {min(ratios):.2f} to {max(ratios):.2f}."
    )


if __name__ == "__main__":
    main()
