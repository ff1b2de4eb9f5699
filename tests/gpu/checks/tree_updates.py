"""Updates of a trainer on rows that begin alike: as trees, as packs, and as `use_prefix_sharing: auto` chooses."""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roll.utils.files import read_object
from roll.utils.network import LOOPBACK, free_port
from tests.gpu.check import Figures, largest, smallest
from tests.gpu.checks.trainers import helpers_of, run_of
from tests.gpu.checks.trees import Shape
from tests.gpu.place import Place, seconds_of

Rows = Sequence[tuple[np.ndarray, int]]  # tokens, and how many of them at the end were sampled
Trainers = Mapping[str, Any]  # strategies by their use_prefix_sharing

_NUM_TIMED = 4

_GRID: dict[str, dict[str, Shape]] = {
    "cuda": {
        "512_64": Shape(512, 64, count=16),
        "256_256": Shape(256, 256, count=16),
        "64_256": Shape(64, 256, count=16),  # few tokens are shared: packs may be as quick
        "episodes": Shape(192, 128, count=8, turns=True, thought=64),
    },
    "cpu": {
        "512_64": Shape(96, 12, size=4, count=2),
        "64_256": Shape(33, 64, size=2),
        "episodes": Shape(48, 32, size=3, turns=True, thought=16),
    },
}
_SIZES = {"cuda": {"18k": 18_432, "73k": 73_728}, "cpu": {"18k": 256, "73k": 1024}}  # tokens of a micro batch


def whole_updates(place: Place) -> Figures:
    """Updates of fsdp2_train on one device, a whole 0.5B in bf16 with gradient checkpointing, in micro batches of two
    sizes: 4 groups of 8 answers of 64 tokens to a prompt of 512 are 18k tokens as packs, 4k as trees. For each of
    `use_prefix_sharing: off`, `on` and `auto`, in this process and in turns: the time by that of packs, what the costs
    by which `auto` chooses expect of trees (`expected_packed_to_tree_*`), and its time by that of the quicker one."""
    model_dir = place.large_model()
    words = int(read_object(model_dir / "config.json")["vocab_size"])
    figures: dict[str, float] = {}
    norms, to_distinct = [], []
    with _trainers(place, model_dir, ("off", "on", "auto")) as trainers:
        for (name, shape), (size, most) in itertools.product(_GRID[place.device].items(), _SIZES[place.device].items()):
            rows, case = list(shape.rows(words)), f"{name}_{size}"
            batches = {way: _batches(rows, most, each) for way, each in trainers.items()}
            for strategy in trainers.values():
                strategy.take_shared_work()  # of the updates before
            norm = {way: _update(strategy, batches[way]) for way, strategy in trainers.items()}
            tokens = {way: strategy.take_shared_work().tokens for way, strategy in trainers.items()}
            seconds = _seconds_in_turns(trainers, batches)
            norms += [norm[way] / norm["off"] for way in ("on", "auto")]
            to_distinct.append(tokens["on"] / sum(map(_num_distinct, batches["on"])))
            figures |= {
                f"tokens_{case}": sum(len(row) - 1 for row, _ in rows) / tokens["on"],
                f"auto_shares_{case}": float(tokens["auto"] == tokens["on"]),
                f"expected_packed_to_tree_{case}": _expected(batches["on"], trainers["auto"]._call_costs),
                f"time_packed_to_tree_{case}": seconds["off"] / seconds["on"],
                f"auto_to_best_{case}": seconds["auto"] / min(seconds["off"], seconds["on"]),
                f"packed_s_{case}": seconds["off"],
            }
            print(f"{case}: tokens {tokens}, {_counts(batches)}, seconds {seconds}, norms {norm}", flush=True)
    return figures | {
        "auto_to_best": largest(value for name, value in figures.items() if name.startswith("auto_to_best")),
        "grad_norm_to_packs_least": smallest(norms),
        "grad_norm_to_packs_most": largest(norms),
        "tokens_to_distinct": largest(to_distinct),
    }


@contextmanager
def _trainers(place: Place, model_dir: Path, ways: Sequence[str]) -> Iterator[Trainers]:
    """fsdp2_train of these ways to share prefixes, in this process."""
    from tests.helpers.processes import DEVICE_VARIABLE

    # The only rank itself: another process would import all of it once more.
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port())}
    if place.on_cuda:
        os.environ[DEVICE_VARIABLE] = "cuda:0"
    of_model = {"dtype": "bf16", "disable_gradient_checkpointing": False}
    with ExitStack() as stack:
        made: dict[str, Any] = {}
        for way in ways:
            run = run_of("fsdp2", model_dir, {"packs": True, "shares": way}, of_model)
            made[way] = stack.enter_context(helpers_of("fsdp2").trainer(replace(run, training={"learning_rate": 1e-6})))
        yield made


def _seconds_in_turns(trainers: Trainers, batches: Mapping[str, list[Any]]) -> dict[str, float]:
    """Medians of updates after the first."""
    seconds: dict[str, list[float]] = {way: [] for way in trainers}
    for _ in range(_NUM_TIMED + 1):
        for way, strategy in trainers.items():
            seconds[way].append(seconds_of(partial(_update, strategy, batches[way])))
    print(f"seconds {seconds}", flush=True)
    return {way: statistics.median(each[1:]) for way, each in seconds.items()}


def _update(strategy: Any, batches: list[Any]) -> float:
    """The norm of its gradient."""
    from tests.parity.strategies.reference import BentLoss, scale_of

    return strategy.train_step(batches, BentLoss(), scale_of(batches), 1.0)[1]["grad_norm"]


def _counts(batches: Mapping[str, list[Any]]) -> str:
    return f"micro batches { {way: len(each) for way, each in batches.items()} }"


def _batches(rows: Rows, most_tokens: int, strategy: Any) -> list[Any]:
    """The rows in micro batches of at most so many tokens, as this trainer computes them, in their order."""
    batches: list[list[tuple[np.ndarray, int]]] = [[]]
    for row in rows:
        tried = [tokens[:-1] for tokens, _ in [*batches[-1], row]]
        if batches[-1] and strategy.computed_tokens(tried) > most_tokens:
            batches.append([])
        batches[-1].append(row)
    return [_batch(each) for each in batches]


def _expected(batches: list[Any], costs: Any) -> float:
    """How many times the costs of their trees packs of these micro batches have, by the costs of `auto`."""
    from roll.types.forest import forest_of

    packed, tree = 0.0, 0.0
    for batch in batches:
        rows = [row[: length - 1].numpy() for row, length in zip(batch.input_ids, batch.lengths, strict=True)]
        tree += float(forest_of(rows).costs(costs).sum())
        packed += sum(float(forest_of([row]).costs(costs).sum()) for row in rows)
    return packed / tree


def _num_distinct(batch: Any) -> int:
    """Computed tokens of a micro batch that are not the same as another one behind the same tokens."""
    seen: set[int] = set()
    for row, length in zip(batch.input_ids.tolist(), batch.lengths.tolist(), strict=True):
        seen.update(itertools.accumulate(row[: length - 1], lambda before, token: hash((before, token)), initial=0))
    return len(seen) - 1  # the beginning of all


def _batch(rows: Rows) -> Any:
    from roll.types.batch import MicroBatch

    size = len(rows), max(len(row) for row, _ in rows)
    ids, mask = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.bool)
    for at, (row, sampled) in enumerate(rows):
        ids[at, : len(row)] = torch.from_numpy(row)
        mask[at, len(row) - sampled : len(row)] = True
    advantages = torch.stack([torch.arange(size[1]) * (1 + int(row[-1]) % 7) % 13 / 6 - 1 for row, _ in rows])
    return MicroBatch(
        input_ids=ids,
        lengths=torch.tensor([len(row) for row, _ in rows]),
        response_mask=mask,
        loss_weights=torch.ones(len(rows)),
        rollout_log_probs=torch.full(size, -12.0) * mask,
        advantages=advantages * mask,
        returns=torch.zeros(size),
    )
