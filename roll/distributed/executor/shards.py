"""Which rows go to which worker: index arithmetic over row lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from roll.distributed.executor.blueprint import BatchLimits
from roll.types.packing import micro_batches_by_count, micro_batches_by_tokens, packs, split_to


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of one shard."""

    shard: int
    start: int
    stop: int


def spread(shard_lengths: Sequence[np.ndarray], num_workers: int) -> list[list[Piece]]:
    """Pieces for each worker, about equal in tokens, in the order of the shards; a worker may get none.

    As many shards as workers: one each, whole.
    """
    if len(shard_lengths) == num_workers:
        return [[Piece(i, 0, len(lengths))] for i, lengths in enumerate(shard_lengths)]
    lengths = np.concatenate(shard_lengths)
    middle = np.cumsum(lengths) - lengths / 2
    worker_of = np.minimum((middle * num_workers / max(1, lengths.sum())).astype(int), num_workers - 1)
    pieces: list[list[Piece]] = [[] for _ in range(num_workers)]
    first = 0
    for shard, rows in enumerate(shard_lengths):
        owners = worker_of[first : first + len(rows)]
        for worker in np.unique(owners):
            inside = np.flatnonzero(owners == worker)
            pieces[worker].append(Piece(shard, int(inside[0]), int(inside[-1]) + 1))
        first += len(rows)
    return pieces


def micro_batches(lengths: np.ndarray, rows: np.ndarray, limits: BatchLimits, at_least: int = 1) -> list[np.ndarray]:
    """Micro batches within their limits. `at_least` so many, at most one per row: ranks make equally many passes. Rows
    that stay together are neighbours in `rows`, and as they were in their micro batch."""
    if limits.together > 1:
        return _of_units(lengths, rows.reshape(-1, limits.together), limits, at_least)
    if limits.packs and limits.max_tokens is not None:
        return packs(lengths, rows, limits.max_tokens, max(limits.at_least, at_least))
    if limits.max_tokens is None:
        found = micro_batches_by_count(lengths, rows, limits.num_rows)
    else:
        found = micro_batches_by_tokens(lengths, rows, limits.max_tokens, limits.round_to)
    return split_to(found, at_least)


def _of_units(lengths: np.ndarray, units: np.ndarray, limits: BatchLimits, at_least: int) -> list[np.ndarray]:
    """The same of units of rows: a pack holds all their tokens, and a padded micro batch is as wide as the longest."""
    count, of_each = units.shape[1], lengths[units]
    tokens = limits.max_tokens if limits.packs or limits.max_tokens is None else limits.max_tokens // count
    size = of_each.sum(1) if limits.packs else of_each.max(1)
    own = replace(limits, num_rows=max(1, limits.num_rows // count), max_tokens=tokens, together=1)
    return [units[batch].ravel() for batch in micro_batches(size, np.arange(len(units)), own, at_least)]


def without_idle(chunk: np.ndarray, idle: np.ndarray, lengths: np.ndarray, num_rows: int) -> np.ndarray:
    """The rows of the chunk that are not idle, in their order; if they are fewer than `num_rows`, the shortest idle
    ones beside them."""
    spare = chunk[idle[chunk]]
    missing = max(0, num_rows - (len(chunk) - len(spare)))
    kept = spare[np.argsort(lengths[spare], kind="stable")[:missing]]
    return chunk[~idle[chunk] | np.isin(chunk, kept)]
