"""Random ragged rows for the tests of roll/algorithms, and the token outputs a model would give for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

from roll.algorithms.loss import Loss
from roll.types.batch import LossScale, MicroBatch, SampleBatch, TokenOutputs, TrainBatch
from roll.types.collate import pad
from roll.types.columns import token_indices
from roll.types.metrics import MetricSums

T = TypeVar("T")


def random_samples(rng: np.random.Generator, response_lengths: Sequence[int], turns: int = 1) -> SampleBatch:
    """Rows of 1 to 3 prompt tokens and then, `turns` times, about 1 / turns of the response, 2 tokens of environment
    between."""
    masks = []
    for length in response_lengths:
        parts = [np.zeros(int(rng.integers(1, 4)), bool)]
        for i, part in enumerate(np.array_split(np.ones(length, bool), turns)):
            parts += [np.zeros(2 if i else 0, bool), part]
        masks.append(np.concatenate(parts))
    mask = np.concatenate(masks)
    rows, tokens = len(masks), len(mask)
    return SampleBatch(
        lengths=np.array([len(m) for m in masks], np.int32),
        input_ids=rng.integers(0, 50, tokens).astype(np.int32),
        response_mask=mask,
        rollout_log_probs=(np.log(rng.uniform(0.1, 0.9, tokens)) * mask).astype(np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        rewards=rng.normal(size=rows).astype(np.float32),
        group_ids=np.arange(rows, dtype=np.int64) // 2,
        trajectory_ids=np.arange(rows, dtype=np.int64),
        turns=np.zeros(rows, np.int32),
        domains=np.full(rows, "math"),
        finish_reasons=np.zeros(rows, np.int8),
        loss_weights=rng.uniform(0.5, 2, rows).astype(np.float32),
    )


def near(rng: np.random.Generator, samples: SampleBatch, by: float) -> np.ndarray:
    """Log-probs that differ from the rollout's by about `by`; 0 outside the response mask. float32 [N]."""
    moved = samples.rollout_log_probs + rng.normal(scale=by, size=samples.num_tokens)
    return (-np.abs(moved) * samples.response_mask).astype(np.float32)


def random_train_batch(rng: np.random.Generator, samples: SampleBatch, old: bool = True) -> TrainBatch:
    def noise() -> np.ndarray:
        return (rng.normal(size=samples.num_tokens) * samples.response_mask).astype(np.float32)

    return TrainBatch(
        samples=samples,
        advantages=noise(),
        old_log_probs=near(rng, samples, 0.3) if old else None,
        ref_log_probs=near(rng, samples, 0.5),
        values=noise(),
        returns=noise(),
    )


def full_scale(samples: SampleBatch) -> LossScale:
    return LossScale(int(samples.response_mask.sum()), int((samples.response_lengths > 0).sum()))


def padded_like(batch: MicroBatch, flat: torch.Tensor, tokens: np.ndarray, outside: float = 0.0) -> torch.Tensor:
    """Flat per-token values, laid out as the micro batch is, differentiably; `outside` where there is no token."""
    inside = torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]
    return torch.full(batch.input_ids.shape, outside, dtype=flat.dtype).masked_scatter(
        inside, flat[torch.from_numpy(tokens)]
    )


def apply_loss(
    loss: Loss,
    batch: TrainBatch,
    flat: dict[str, torch.Tensor],
    parts: Sequence[np.ndarray],
    round_to: int = 1,
    scale: LossScale | None = None,
    outside: float = 0.0,
) -> tuple[float, MetricSums]:
    """Backward through `loss` on each part as a micro batch, as a strategy does it. `flat` holds the outputs of all
    tokens."""
    scale = full_scale(batch.samples) if scale is None else scale
    total, metrics = 0.0, MetricSums()
    for rows in parts:
        micro = pad(batch, rows, round_to)
        tokens = token_indices(batch.samples.lengths, rows)
        outputs = TokenOutputs(**{name: padded_like(micro, values, tokens, outside) for name, values in flat.items()})
        value, sums = loss(outputs, micro, scale)
        value.backward()
        total += value.item()
        metrics.merge([sums])
    return total, metrics


def alone(values: Sequence[float]) -> list[float]:
    """all_reduce_sum of a single rank."""
    return list(values)


def on_ranks(num_ranks: int, work: Callable[[int, Callable[[Sequence[float]], list[float]]], T]) -> list[T]:
    """work(rank, all_reduce_sum) on every rank at once, each in a thread; hangs for no longer than 10 s if ranks
    disagree."""
    barrier = threading.Barrier(num_ranks)
    sent: list[Sequence[float]] = [()] * num_ranks

    def run(rank: int) -> T:
        def all_reduce_sum(values: Sequence[float]) -> list[float]:
            sent[rank] = values
            barrier.wait(10)
            total = [float(sum(column)) for column in zip(*sent, strict=True)]
            barrier.wait(10)
            return total

        return work(rank, all_reduce_sum)

    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(run, range(num_ranks)))
