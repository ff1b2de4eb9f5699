"""CPU seconds of training and scoring rows of very different lengths: padded against packed.

    python benchmarks/packing.py [--rows 32] [--shortest 24] [--spread 30] [--hidden 256] [--layers 8] [--repeat 3]

The same rows, by fsdp2_train and hf_infer on one rank and one thread, as their workers cut them into micro batches: by
a number of rows, by padded tokens, or into packs of as many tokens. Lengths are spread evenly on a logarithmic scale.
Prints tokens computed, CPU seconds (the least of the repeats) and their ratio to one padded micro batch of all rows,
and how far log-probs and gradient norm differ from its."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from roll.algorithms.loss import SupervisedLoss
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.executor.blueprint import BatchLimits
from roll.distributed.executor.jobs import micro_batches
from roll.distributed.strategy.base import RankContext, ScoreStrategy, TrainStrategy
from roll.distributed.strategy.fsdp2.train import Fsdp2TrainStrategy
from roll.distributed.strategy.hf.score import HfScoreStrategy
from roll.models.tiny import build_model, build_tokenizer, save_pretrained
from roll.types.batch import LossScale, MicroBatch
from roll.utils.network import LOOPBACK, free_port

VOCABULARY = 256


def batch_of(lengths: np.ndarray, rows: np.ndarray) -> MicroBatch:
    """These rows, right padded; all but the first sixth of each was sampled."""
    counts = torch.from_numpy(lengths[rows])
    columns = torch.arange(int(counts.max()))
    inside = columns < counts[:, None]
    ids = torch.stack([torch.randint(3, VOCABULARY, columns.shape, generator=_seeded(row)) for row in rows])
    mask = inside & (columns >= counts[:, None].div(6, rounding_mode="floor").clamp(min=1))
    return MicroBatch(
        input_ids=torch.where(inside, ids, 0),
        lengths=counts,
        response_mask=mask,
        loss_weights=torch.ones(len(rows)),
    )


def _seeded(row: int) -> torch.Generator:
    return torch.Generator().manual_seed(int(row))


def strategies(folder: Path, packs: bool, num_rows: int) -> tuple[TrainStrategy, ScoreStrategy]:
    """Ready to train and to score, with the same weights."""
    model = {"model_name_or_path": str(folder), "dtype": "fp32", "disable_gradient_checkpointing": True}
    made = []
    for name in ("fsdp2_train", "hf_infer"):
        own = {"use_sequence_packing": packs, "use_prefix_sharing": "off"}
        role = WorkerConfig.model_validate({"strategy_args": {"strategy_name": name}, "model_args": model} | own)
        where = RankContext(name, 0, 1, 0, 0, torch.device("cpu"))
        plan = TrainPlan(name, num_rows, num_rows, 1, 1, 1, steps=10, warmup_updates=10, infer_batch_size=num_rows)
        made.append(Fsdp2TrainStrategy(role, where, plan) if name == "fsdp2_train" else HfScoreStrategy(role, where))
        made[-1].setup()
    return made[0], made[1]


def cpu_seconds(work: object, repeat: int) -> tuple[float, object]:
    """The least of the repeats, and what the first one gave."""
    assert callable(work)
    taken, results = [], []
    for _ in range(repeat):
        started = time.process_time()
        results.append(work())
        taken.append(time.process_time() - started)
    return min(taken), results[0]


def measure(folder: Path, lengths: np.ndarray, limits: BatchLimits, repeat: int) -> dict[str, object]:
    """One way to cut the rows: tokens, CPU seconds of an update and of scoring, the numbers that came out."""
    groups = micro_batches(lengths, np.arange(len(lengths)), limits)
    batches = [batch_of(lengths, group) for group in groups]
    trainer, scorer = strategies(folder, limits.packs, len(lengths))
    scale = LossScale(sum(int(batch.response_mask.sum()) for batch in batches), len(lengths))
    loss = SupervisedLoss()
    scoring, outputs = cpu_seconds(lambda: scorer.log_probs(batches, 1.0), repeat)
    training, found = cpu_seconds(lambda: trainer.train_step(batches, loss, scale, 1.0)[1]["grad_norm"], repeat)
    trainer.shutdown()
    scorer.shutdown()
    scores = {}
    for group, output in zip(groups, outputs, strict=True):  # type: ignore[call-overload]
        scores |= {row: scored[: lengths[row]] for row, scored in zip(group.tolist(), output.log_probs, strict=True)}
    padded = sum(batch.input_ids.numel() for batch in batches)
    return {
        "passes": len(groups),
        "tokens": int(lengths.sum()) if limits.packs else padded,
        "training": training,
        "scoring": scoring,
        "grad_norm": found,
        "log_probs": torch.cat([scores[row] for row in range(len(lengths))]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("rows", 32), ("shortest", 24), ("hidden", 256), ("layers", 8), ("repeat", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--spread", type=float, default=30.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port())}
    steps = np.linspace(0, 1, given.rows)
    lengths = np.random.default_rng(0).permutation((given.shortest * given.spread**steps).astype(np.int64))
    budget = int(lengths.max()) * max(1, given.rows // 8)
    ways = {
        "padded, one micro batch": BatchLimits(given.rows),
        f"padded, {given.rows // 4} rows": BatchLimits(given.rows // 4),
        f"padded, up to {budget} tokens": BatchLimits(1, budget),
        f"packs, up to {budget} tokens": BatchLimits(1, budget, packs=True),
        "packs, one": BatchLimits(1, int(lengths.sum()), packs=True),
    }
    print(f"{given.rows} rows of {lengths.min()} to {lengths.max()} tokens, {lengths.sum()} together")
    print(f"{'':32}{'passes':>7}{'tokens':>8}{'train s':>9}{'x':>6}{'score s':>9}{'x':>6}{'log-prob':>10}{'norm':>9}")
    with tempfile.TemporaryDirectory() as name:
        tokenizer = build_tokenizer()
        size = {"hidden_size": given.hidden, "num_layers": given.layers, "num_heads": given.hidden // 32}
        model = build_model(tokenizer, num_kv_heads=max(1, given.hidden // 64), **size)
        folder = save_pretrained(Path(name), model, tokenizer)
        first = None
        for way, limits in ways.items():
            got = measure(folder, lengths, limits, given.repeat)
            first = first or got
            off = float((got["log_probs"] - first["log_probs"]).abs().max())  # type: ignore[operator]
            norm = abs(got["grad_norm"] / first["grad_norm"] - 1)  # type: ignore[operator]
            ratios = [first[kind] / got[kind] for kind in ("training", "scoring")]  # type: ignore[operator]
            print(
                f"{way:32}{got['passes']:>7}{got['tokens']:>8}{got['training']:>9.2f}{ratios[0]:>6.2f}"
                f"{got['scoring']:>9.2f}{ratios[1]:>6.2f}{off:>10.1e}{norm:>9.1e}"
            )


if __name__ == "__main__":
    main()
