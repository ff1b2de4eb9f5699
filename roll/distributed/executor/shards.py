"""Which rows go to which worker: index arithmetic over row lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from roll.distributed.executor.blueprint import BatchLimits
from roll.types.forest import in_order
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


def tree_micro_batches(
    keys: Sequence[np.ndarray], rows: np.ndarray, limits: BatchLimits, at_least: int = 1
) -> list[np.ndarray]:
    """The same of rows that may share prefixes, by their tokens: `keys[i]` are those of rows[i]. Rows that begin alike
    stand together, and a limit by tokens counts what a micro batch computes; padding there is none.

    Example: rows of 5 tokens, four of which all have in common, are 8 tokens: one micro batch of at most 8.
    """
    order, shared = in_order(keys)
    if limits.max_tokens is None:
        cuts = np.arange(limits.num_rows, len(rows), limits.num_rows)
    else:
        lengths = np.array([len(key) for key in keys])[order]
        cuts = _cuts(lengths, shared, limits.max_tokens)
        low, high = 0, limits.max_tokens  # the smallest limit that makes as few: even ones
        while high - low > 1:
            middle = (low + high) // 2
            even = _cuts(lengths, shared, middle)
            low, high, cuts = (low, middle, even) if len(even) <= len(cuts) else (middle, high, cuts)
    return split_to(np.split(rows[order], cuts), min(max(limits.at_least, at_least), len(rows)))


def _cuts(lengths: np.ndarray, shared: np.ndarray, max_tokens: int) -> list[int]:
    """Row numbers at which to cut, so that no part computes more than `max_tokens`. A longer row stands alone."""
    cuts, load = [], 0
    for row, (length, common) in enumerate(zip(lengths.tolist(), shared.tolist(), strict=True)):
        load += length - common
        if row and load > max_tokens:
            cuts.append(row)
            load = length
    return cuts


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
