"""What it takes to bring the trainer's weights to an engine, beside one copy of them in memory.

    python benchmarks/weight_sync.py [--sizes 64 256 1024] [--engines hf_infer vllm sglang]
        [--routes memory broadcast file] [--trainers zero0 zero1 zero2 zero3 fsdp2 megatron] [--ranks 1] [--rounds 5]
        [--bucket_mb 256] [--frozen PREFIX]

For every engine, route, trainer and size (MB of bf16 weights of a random Qwen2 model) a run's own clusters are started,
a trainer of so many ranks and one engine, on devices of their own, and the weights are published as after a step.
Before each update as many bytes are copied once in memory, by one thread. Printed are medians over the rounds, the
first one apart, since it opens buffers and groups: seconds per GB of the model, and times a copy. `--frozen`:
freeze_module_prefix of the trainer; the share of the bytes that is sent is printed last.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
ENGINES, ROUTES = ("hf_infer", "vllm", "sglang"), ("memory", "broadcast", "file")
NO_CONFIG = "~actor_train.strategy_args.strategy_config"
TRAINERS = {
    **{
        f"zero{stage}": (NO_CONFIG, f"+actor_train.strategy_args.strategy_config.zero_optimization.stage={stage}")
        for stage in range(4)
    },
    "fsdp2": (NO_CONFIG, "actor_train.strategy_args.strategy_name=fsdp2_train"),
    "megatron": (NO_CONFIG, "actor_train.strategy_args.strategy_name=megatron_train"),
}
HIDDEN, VOCABULARY = 1024, 4096
SETTINGS = {
    "hf_infer": "max_model_len: 64",
    "vllm": "max_model_len: 64, enforce_eager: true, gpu_memory_utilization: 0.3",
    "sglang": "context_length: 64, mem_fraction_static: 0.3",
}


def write_model(directory: Path, megabytes: int) -> int:
    """A random Qwen2 model of about so many MB in bf16, with a tokenizer. Returns its bytes."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from roll.models.tiny import build_tokenizer

    shape: dict[str, Any] = {"hidden_size": HIDDEN, "intermediate_size": 4 * HIDDEN, "vocab_size": VOCABULARY}
    per_layer = 2 * (4 * HIDDEN**2 + 3 * 4 * HIDDEN**2)
    layers = max(1, round((megabytes * 2**20 - 4 * VOCABULARY * HIDDEN) / per_layer))
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen2ForCausalLM(
        Qwen2Config(**shape, num_hidden_layers=layers, num_attention_heads=16, num_key_value_heads=16)
    )
    model.save_pretrained(directory)
    build_tokenizer().save_pretrained(directory)
    return sum(parameter.nbytes for parameter in model.parameters())


def measured(arguments: argparse.Namespace, engine: str, route: str, trainer: str, model: str, num_bytes: int) -> Any:
    """Seconds of each update, and of a copy before it; and bytes sent in the last update."""
    import torch

    from roll.configs.plan.batch_plan import BatchPlan
    from roll.distributed.executor.clusters import RLClusters
    from roll.pipeline.rlvr.rlvr_config import RLVRConfig
    from roll.run.spec import pipeline_of
    from roll.run.start.load import load

    overrides = [
        f"pretrain={model}",
        f"output_dir={Path(model).parent / 'output'}",
        "actor_train.model_args.dtype=bf16",
        "actor_infer.model_args.dtype=bf16",
        f"actor_infer.strategy_args.strategy_name={engine}",
        f"actor_infer.strategy_args.strategy_config={{{SETTINGS[engine]}}}",
        f"weight_sync_route={route}",
        f"model_update_buffer_size_mb={arguments.bucket_mb}",
        "actor_train.training_args.gradient_accumulation_steps=1",
        f"num_gpus_per_node={arguments.ranks + 1}",
        f"actor_train.device_mapping=[{','.join(map(str, range(arguments.ranks)))}]",
        f"actor_infer.device_mapping=[{arguments.ranks}]",
        *TRAINERS[trainer],
    ]
    if arguments.frozen:
        overrides.append(f"+actor_train.model_args.freeze_module_prefix={arguments.frozen}")
    loaded = load(pipeline_of("rlvr"), REPOSITORY / "examples" / "tiny-sort", "tiny_sort", overrides)
    assert isinstance(loaded.config, RLVRConfig) and isinstance(loaded.plan, BatchPlan)
    clusters = RLClusters(loaded.config, loaded.plan)
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    copies, updates, sent = [], [], 0
    try:
        clusters.wait_ready()
        for version in range(arguments.rounds + 1):
            copies.append(seconds_of(lambda: target.copy_(source)))
            begin = time.perf_counter()
            sent = clusters.publish_weights(version)
            updates.append(time.perf_counter() - begin)
    finally:
        clusters.close()
    return {"copies": copies, "updates": updates, "sent": sent}


def seconds_of(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 256, 1024], help="MB of bf16 weights")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--routes", nargs="+", choices=ROUTES, default=list(ROUTES))
    parser.add_argument("--trainers", nargs="+", choices=TRAINERS, default=["zero0"])
    parser.add_argument("--ranks", type=int, default=1, help="of the trainer")
    parser.add_argument("--frozen", help="freeze_module_prefix of the trainer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bucket_mb", type=int, default=256)
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)  # of this form, in this process
    arguments = parser.parse_args()
    if arguments.one:
        engine, route, trainer, model, num_bytes = arguments.one
        result = measured(arguments, engine, route, trainer, model, int(num_bytes))
        print(json.dumps(result), flush=True)
        return
    print(f"{'engine':10}{'route':11}{'trainer':10}{'MB':>6}{'s/GB':>8}{'x copy':>8}{'first, s':>10}{'sent':>7}")
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as directory:
            model = Path(directory) / "model"
            num_bytes = write_model(model, size)
            for engine in arguments.engines:
                for route, trainer in itertools.product(arguments.routes, arguments.trainers):
                    print(line(arguments, engine, route, trainer, model, num_bytes), flush=True)


def line(arguments: argparse.Namespace, engine: str, route: str, trainer: str, model: Path, num_bytes: int) -> str:
    given = [
        "--rounds",
        str(arguments.rounds),
        "--bucket_mb",
        str(arguments.bucket_mb),
        "--ranks",
        str(arguments.ranks),
    ]
    frozen = ["--frozen", arguments.frozen] if arguments.frozen else []
    command = [sys.executable, __file__, *given, *frozen, "--one", engine, route, trainer, str(model), str(num_bytes)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    start = f"{engine:10}{route:11}{trainer:10}{num_bytes / 2**20:6.0f}"
    if done.returncode:
        return f"{start}  failed: {done.stderr.strip().splitlines()[-1]}"
    result = json.loads(done.stdout.strip().splitlines()[-1])
    update, copy = (statistics.median(result[name][1:]) for name in ("updates", "copies"))
    figures = f"{update * 2**30 / num_bytes:8.2f}{update / copy:8.1f}{result['updates'][0]:10.2f}"
    return f"{start}{figures}{result['sent'] / num_bytes:7.2f}"


if __name__ == "__main__":
    main()
