"""CPU seconds of training and scoring rows that begin alike: as trees (`use_prefix_sharing: on`) against packs.

    python benchmarks/prefix_sharing.py [--hidden 256] [--layers 4] [--repeat 9] [--only group] [--exact]

The same rows in one micro batch, by fsdp2_train on one rank and one thread. Both ways take turns, so that what else the
machine does falls on both. Prints tokens computed, and of a forward and backward pass, of a pass that scores, and of a
whole update with its optimizer the CPU seconds (median of the repeats) and the median of the pairs' ratios with its
interval, and the largest difference of the gradients, as a share of the largest."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from ratios import median_interval
from torch.distributed.tensor import DTensor
from transformers import Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from roll.algorithms.loss import SupervisedLoss
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext
from roll.distributed.strategy.fsdp2.train import Fsdp2TrainStrategy
from roll.types.batch import LossScale, MicroBatch
from roll.types.forest import forest_of
from roll.utils.network import LOOPBACK, free_port

VOCABULARY = 2048
Rows = list[tuple[np.ndarray, int]]  # tokens, and how many of them at the end were sampled


def tokens(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(3, VOCABULARY, count)


def group(prompt: int, answer: int, size: int) -> Rows:
    generator = np.random.default_rng(0)
    start = tokens(generator, prompt)
    return [(np.concatenate([start, tokens(generator, answer)]), answer) for _ in range(size)]


def episode(turns: int, seen: int, sampled: int, thought: int) -> Rows:
    """The rows of its steps. The first `thought` tokens of an answer are not in the history of later ones."""
    generator, history, rows = np.random.default_rng(0), np.zeros(0, np.int64), []
    for _ in range(turns):
        history = np.concatenate([history, tokens(generator, seen)])
        answer = tokens(generator, sampled)
        rows.append((np.concatenate([history, answer]), sampled))
        history = np.concatenate([history, answer[thought:]])
    return rows


SHAPES: dict[str, Callable[[], Rows]] = {
    "group: prompt 512, 8 answers of 64": lambda: group(512, 64, 8),
    "group: prompt 256, 8 answers of 256": lambda: group(256, 256, 8),
    "group: prompt 768, 16 answers of 32": lambda: group(768, 32, 16),
    "episode: 8 turns of 48 + 16": lambda: episode(8, 48, 16, 0),
    "episode: 8 turns of 48 + 32, 16 of them thoughts": lambda: episode(8, 48, 32, 16),
    "nothing shared: 4 rows of 256": lambda: group(0, 256, 4),
}


def batch_of(rows: Rows) -> MicroBatch:
    width = max(len(row) for row, _ in rows)
    ids, mask = torch.zeros(len(rows), width, dtype=torch.int64), torch.zeros(len(rows), width, dtype=torch.bool)
    for at, (row, sampled) in enumerate(rows):
        ids[at, : len(row)] = torch.from_numpy(row)
        mask[at, len(row) - sampled : len(row)] = True
    return MicroBatch(ids, torch.tensor([len(row) for row, _ in rows]), mask, torch.ones(len(rows)))


def trainer(folder: Path, sharing: str, exact: bool) -> Fsdp2TrainStrategy:
    model = {"model_name_or_path": str(folder), "dtype": "fp32", "disable_gradient_checkpointing": True}
    own = {"use_sequence_packing": True, "use_prefix_sharing": sharing}
    role = WorkerConfig.model_validate({"strategy_args": {"strategy_name": "fsdp2_train"}, "model_args": model} | own)
    plan = TrainPlan("actor_train", 16, 16, 1, 1, 1, steps=10, warmup_updates=10, infer_batch_size=16)
    made = Fsdp2TrainStrategy(role, RankContext("actor_train", 0, 1, 0, 0, torch.device("cpu"), exact=exact), plan)
    made.setup()
    return made


def passes(strategy: Fsdp2TrainStrategy, batch: MicroBatch) -> list[torch.Tensor]:
    """Gradients of a forward and backward pass."""
    loss, module = SupervisedLoss(), strategy.model.module
    scale = LossScale(int(batch.response_mask.sum()), len(batch))
    loss(strategy._outputs(module, batch, loss, 1.0), batch, scale)[0].backward()
    found = [
        cast(DTensor, parameter.grad).to_local() for parameter in module.parameters() if parameter.grad is not None
    ]
    module.zero_grad()
    return found


def update(strategy: Fsdp2TrainStrategy, batch: MicroBatch) -> None:
    scale = LossScale(int(batch.response_mask.sum()), len(batch))
    strategy.train_step([batch], SupervisedLoss(), scale, 1.0)


def in_turns(works: list[Callable[[], object]], repeat: int) -> list[list[float]]:
    """CPU seconds of each, round by round, after one round that does not count."""
    taken: list[list[float]] = [[] for _ in works]
    for round_ in range(repeat + 1):
        for own, work in zip(taken, works, strict=True):
            started = time.process_time()
            work()
            own.extend([time.process_time() - started] * (round_ > 0))
    return taken


def ratios(before: list[float], after: list[float]) -> str:
    """Example: "3.93 (3.81-4.02)", the median and its 95 % interval; of fewer than 6 pairs all that there were."""
    pairs = [one / other for one, other in zip(before, after, strict=True)]
    low, high = median_interval(pairs) or (min(pairs), max(pairs))
    return f"{statistics.median(pairs):.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("hidden", 256), ("layers", 4), ("repeat", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", default="", help="shapes whose names have this in them")
    parser.add_argument("--exact", action="store_true", help="with exact_log_probs, whose attention shares nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port())}
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=given.hidden,
        intermediate_size=given.hidden * 11 // 4,
        num_hidden_layers=given.layers,
        num_attention_heads=given.hidden // 32,
        num_key_value_heads=max(1, given.hidden // 64),
        max_position_embeddings=4096,
    )
    parts = "".join(f"{part + ', s':>14}{'x':>19}" for part in ("passes", "scoring", "update"))
    print(f"{'':50}{'tokens':>14}{parts}{'off':>9}")
    with tempfile.TemporaryDirectory() as name:
        Qwen2ForCausalLM(config).save_pretrained(name)
        ways = [trainer(Path(name), sharing, given.exact) for sharing in ("off", "on", "auto")]
        for shape, make in SHAPES.items():
            if given.only in shape:
                measure(shape, batch_of(make()), ways, given.repeat)


def measure(shape: str, batch: MicroBatch, ways: list[Fsdp2TrainStrategy], repeat: int) -> None:
    """Prints a line of packs against trees, or of auto where nothing is shared."""
    flat, tree, auto = ways
    ends = (batch.lengths - 1).tolist()
    rows = [row[:end].numpy() for row, end in zip(batch.input_ids, ends, strict=True)]
    counts = (sum(ends), forest_of(rows).num_tokens)
    pair = [flat, tree if counts[0] > counts[1] else auto]
    one, other = (passes(way, batch) for way in pair)
    off = max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
    off /= max(float(a.abs().max()) for a in one)
    text = f"{shape:50}{counts[0]:>7}{counts[1]:>7}"
    works: list[Callable[[Fsdp2TrainStrategy], object]] = [
        lambda way: passes(way, batch),
        lambda way: way.log_probs([batch], 1.0),
        lambda way: update(way, batch),
    ]
    for work in works:
        before, after = in_turns([lambda way=way, work=work: work(way) for way in pair], repeat)
        text += f"{statistics.median(before):>7.2f}{statistics.median(after):>7.2f}{ratios(before, after):>19}"
    print(f"{text}{off:>9.1e}", flush=True)


if __name__ == "__main__":
    main()
