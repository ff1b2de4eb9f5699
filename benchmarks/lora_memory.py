"""Memory of a rank that trains adapters, beside one that trains all weights.

    python benchmarks/lora_memory.py [--ranks 2] [--layers 8] [--hidden 768] [--rank 16] [--dtype bf16]

Each strategy makes two updates of two rows of 64 tokens on a random Qwen2 model, with every weight trained and with
lora_target all-linear; each rank in a process of its own. Printed are, for the rank that holds most: what its memory
grew by from before the model was loaded (peak: of host memory without GPUs, else of what torch allocated) and, beside
it, what the plan counts as weights, gradients and optimizer (docs/memory.md). The rest is activations, buckets,
fragments and, on a CPU, code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from roll.algorithms.loss import SupervisedLoss
from roll.configs.memory.model_shape import model_shape
from roll.configs.memory.parts import RoleFacts
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.strategies.table import load_spec
from roll.distributed.strategy.base import RankContext
from roll.types.batch import LossScale, MicroBatch
from roll.utils.imports import resolve
from roll.utils.network import free_port

_BUCKET = {"reduce_bucket_size": 8_000_000}
_ZERO3 = _BUCKET | {"stage": 3, "stage3_param_persistence_threshold": 0}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepspeed_train, stage 0": ("deepspeed_train", {"zero_optimization": {"stage": 0}}),
    "deepspeed_train, stage 2": ("deepspeed_train", {"zero_optimization": _BUCKET | {"stage": 2}}),
    "deepspeed_train, stage 3": ("deepspeed_train", {"zero_optimization": _ZERO3}),
    "fsdp2_train": ("fsdp2_train", {}),
}
ROWS, TOKENS = 2, 64


def role_of(form: str, model: Path, rank: int, dtype: str) -> WorkerConfig:
    name, config = FORMS[form]
    lora = {"lora_target": "all-linear", "lora_rank": rank} if rank else {}
    return WorkerConfig.model_validate(
        {
            "strategy_args": {"strategy_name": name, "strategy_config": config},
            "model_args": {"model_name_or_path": str(model), "dtype": dtype} | lora,
            "use_prefix_sharing": "off",
        }
    )


def measured(role: WorkerConfig, ranks: int) -> int:
    """Bytes that this rank's memory grew by at most."""
    number = int(os.environ["RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{number}" if on_gpu else "cpu")
    plan = TrainPlan("actor_train", ROWS * ranks, ROWS, 1, ranks, 1, steps=2, warmup_updates=0, infer_batch_size=1)
    spec = load_spec(role.strategy_name or "")
    strategy: Any = resolve(spec.classes["train"])(role, RankContext("t", number, ranks, number, 0, device), plan)  # type: ignore[operator]
    strategy.rank.start()  # what comes with the process group is not the model's
    before = psutil.Process().memory_info().rss
    strategy.setup()
    mask = torch.ones(ROWS, TOKENS, dtype=torch.bool)
    zeros = torch.zeros(ROWS, TOKENS)
    batch = MicroBatch(
        torch.randint(3, 250, (ROWS, TOKENS)), torch.full((ROWS,), TOKENS), mask, torch.ones(ROWS), zeros
    )
    for _ in range(2):
        strategy.train_step([batch], SupervisedLoss(), LossScale(ROWS * TOKENS * ranks, ROWS * ranks), 1.0)
    if on_gpu:
        return torch.cuda.max_memory_allocated(device)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024 - before


def planned(role: WorkerConfig, model: Path, ranks: int) -> float:
    shape, why = model_shape(json.loads((model / "config.json").read_text()))
    assert shape is not None, why
    spec = load_spec(role.strategy_name or "")
    memory: Any = resolve(spec.memory["train"])
    states = memory(RoleFacts(role, shape, "train", ranks, shares_devices=False)).states
    return sum(part.num_bytes for parts in states.values() for part in parts)


def in_processes(form: str, given: argparse.Namespace, model: Path, rank: int) -> float:
    """Not a number where a rank failed, which has said why."""
    common = {"WORLD_SIZE": str(given.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, __file__, "--form", form, "--model", str(model), "--dtype", given.dtype]
    command += ["--rank", str(rank), "--ranks", str(given.ranks)]
    started = [
        subprocess.Popen(
            command, env=os.environ | common | {"RANK": str(r), "LOCAL_RANK": str(r)}, stdout=subprocess.PIPE, text=True
        )
        for r in range(given.ranks)
    ]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        return float("nan")
    return max(int(text.splitlines()[-1]) for text in said)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--form", choices=tuple(FORMS), help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.form:
        print(measured(role_of(given.form, given.model, given.rank, given.dtype), given.ranks))
        return
    from roll.models.tiny import build_model, build_tokenizer

    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory)
        sizes = {"num_layers": given.layers, "hidden_size": given.hidden, "num_heads": given.hidden // 32}
        made = build_model(build_tokenizer(), num_kv_heads=given.hidden // 64, **sizes)
        made.save_pretrained(model)
        print(f"{made.num_parameters() / 1e6:.1f} M parameters, {given.dtype}, {given.ranks} ranks; MB of a rank")
        print(f"{'':26}{'all weights':>22}{'LoRA':>22}{'share':>8}")
        for form in FORMS:
            peaks = [in_processes(form, given, model, rank) for rank in (0, given.rank)]
            plans = [planned(role_of(form, model, rank, given.dtype), model, given.ranks) for rank in (0, given.rank)]
            cells = [f"{peak / 1e6:.0f} (plan {plan / 1e6:.0f})" for peak, plan in zip(peaks, plans, strict=True)]
            print(f"{form:26}{cells[0]:>22}{cells[1]:>22}{peaks[1] / peaks[0]:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
