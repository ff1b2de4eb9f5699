"""Jobs of one step for workers that learn, and their reports."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from roll.algorithms.credit import RowCredit
from roll.algorithms.loss import Loss
from roll.algorithms.masking import ZeroGradientRows
from roll.algorithms.objectives import CovarianceChoice
from roll.algorithms.second_moment import SecondMomentChoice
from roll.distributed.executor.blueprint import BatchLimits
from roll.types.columns import token_indices
from roll.types.metrics import MetricSums, SharedWork
from roll.types.packing import in_order, micro_batches_by_count, micro_batches_by_tokens, packs, split_to


@dataclass(frozen=True)
class TrainJob:
    """One step's training: the rows make `num_updates` chunks of equal size, which are gone through `epochs` times.
    Without credit they are trained on as they are. `zero_gradient_rows`: which rows the loss need not see, if it need
    not see all. `choice`: which tokens of an update its objective singles out; `moment_choice`: the same, by log-probs
    of a pass before each update."""

    loss: Loss
    temperature: float
    num_updates: int
    epochs: int = 1
    credit: RowCredit | None = None
    zero_gradient_rows: ZeroGradientRows | None = None
    choice: CovarianceChoice | None = None
    moment_choice: SecondMomentChoice | None = None


@dataclass(frozen=True)
class TrainRequest:
    """The job of one rank, whose shard holds `rows`. `counts[u]` micro batches make update u, on all ranks alike, and
    with an expert's rows `expert_counts[u]` more."""

    job: TrainJob
    rows: np.ndarray
    limits: BatchLimits
    counts: tuple[int, ...]
    expert_counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class TrainReport:
    """Report of one rank about its updates: sums to be merged over ranks, and values that are global already: numbers
    of the last update, and the number of tokens in all updates, each counted once. `numbers`: of the rows of its
    shard, as `row_numbers` gives them. `shared`: its work where prefixes are. `left_out`: bool, of these rows."""

    sums: MetricSums
    last: dict[str, float]
    left_out: np.ndarray
    num_tokens: int
    numbers: np.ndarray
    shared: SharedWork = field(default_factory=SharedWork)


# Per-token scores between the workers that computed them and the workers that train on them.

Score = Literal["log_probs", "log_probs_and_routes", "base_log_probs", "values"]


@dataclass(frozen=True)
class ScorePiece:
    """Scores of some rows, wherever they were computed: `handle` stands for a flat array, row after row, float32 but
    for the experts of tokens. Of lessons and experts, an entry is all that is told of a token."""

    rows: np.ndarray  # int64 row ids
    lengths: np.ndarray  # entries of each row: its tokens; of lessons, those of the response
    handle: object


@dataclass(frozen=True)
class ScoreSet:
    """One kind of score (log-probs, values) for all rows of a step. The driver holds handles only."""

    pieces: tuple[ScorePiece, ...]

    def of(self, rows: np.ndarray) -> tuple[ScorePiece, ...]:
        return tuple(piece for piece in self.pieces if np.isin(piece.rows, rows).any())


def join_scores(
    pieces: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    rows: np.ndarray,
    lengths: np.ndarray,
    has_response: np.ndarray,
) -> np.ndarray:
    """Scores of `rows` in this order, flat, from pieces (row ids, entries of each row, flat values) in any order. Rows
    without a response (padding rows, which only one role has) get 0, of whole numbers -1. ValueError if another row is
    missing, or if its length differs."""
    real = np.flatnonzero(has_response)
    if len(pieces) == 1 and np.array_equal(pieces[0][0], rows) and np.array_equal(pieces[0][1], lengths):
        return pieces[0][2]
    ids = np.concatenate([piece[0] for piece in pieces]) if pieces else np.empty(0, np.int64)
    have = np.concatenate([piece[1] for piece in pieces]) if pieces else np.empty(0, np.int64)
    values = np.concatenate([piece[2] for piece in pieces]) if pieces else np.empty(0, np.float32)
    unknown = -1 if values.dtype.kind == "i" else 0
    out = np.full((int(lengths.sum()), *values.shape[1:]), unknown, values.dtype)
    place = {int(row): position for position, row in enumerate(ids)}
    missing = [int(row) for row in rows[real] if int(row) not in place]
    if missing:
        raise ValueError(f"no scores for rows {missing[:5]}")
    source = np.array([place[int(row)] for row in rows[real]], np.int64)
    if not np.array_equal(have[source], lengths[real]):
        raise ValueError("scores and samples disagree on the length of a row")
    out[token_indices(lengths, real)] = values[token_indices(have, source)]
    return out


# Which rows go to which worker: index arithmetic over row lengths.


@dataclass(frozen=True)
class RowChunk:
    """Rows [start, stop) of one shard."""

    shard: int
    start: int
    stop: int


def spread(shard_lengths: Sequence[np.ndarray], num_workers: int) -> list[list[RowChunk]]:
    """Pieces for each worker, about equal in tokens, in the order of the shards; a worker may get none."""
    if len(shard_lengths) == num_workers:
        return [[RowChunk(i, 0, len(lengths))] for i, lengths in enumerate(shard_lengths)]
    lengths = np.concatenate(shard_lengths)
    middle = np.cumsum(lengths) - lengths / 2
    worker_of = np.minimum((middle * num_workers / max(1, lengths.sum())).astype(int), num_workers - 1)
    pieces: list[list[RowChunk]] = [[] for _ in range(num_workers)]
    first = 0
    for shard, rows in enumerate(shard_lengths):
        owners = worker_of[first : first + len(rows)]
        for worker in np.unique(owners):
            inside = np.flatnonzero(owners == worker)
            pieces[worker].append(RowChunk(shard, int(inside[0]), int(inside[-1]) + 1))
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
        batches = micro_batches_by_count(lengths, rows, limits.num_rows)
    else:
        batches = micro_batches_by_tokens(lengths, rows, limits.max_tokens, limits.round_to)
    return split_to(batches, at_least)


def tree_micro_batches(
    keys: Sequence[np.ndarray],
    rows: np.ndarray,
    limits: BatchLimits,
    at_least: int = 1,
    computed: Callable[[Sequence[np.ndarray]], int] | None = None,
) -> list[np.ndarray]:
    """Micro batches of rows that may share prefixes; `keys[i]` are the tokens of rows[i]. Rows that begin alike stand
    together, and a limit by tokens counts what is computed: the distinct tokens, or what `computed` says."""
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
    batches = np.split(order, cuts)
    if limits.max_tokens is not None and computed is not None:
        batches = [part for batch in batches for part in _fitting(keys, batch, limits.max_tokens, computed)]
    return split_to([rows[batch] for batch in batches], min(max(limits.at_least, at_least), len(rows)))


def _fitting(
    keys: Sequence[np.ndarray], batch: np.ndarray, max_tokens: int, computed: Callable[[Sequence[np.ndarray]], int]
) -> Iterator[np.ndarray]:
    """The rows of a micro batch in parts that compute at most `max_tokens`: small beginnings are not shared."""
    while len(batch):
        fits, fails = 1, len(batch) + 1  # so many rows; a longer row stands alone
        most = len(batch)
        while fails - fits > 1:
            fits, fails = (most, fails) if computed([keys[i] for i in batch[:most]]) <= max_tokens else (fits, most)
            most = (fits + fails) // 2
        yield batch[:fits]
        batch = batch[fits:]


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
    """Micro batches of whole units of rows: a pack holds all their tokens, a padded one is as wide as the longest."""
    count, of_each = units.shape[1], lengths[units]
    tokens = limits.max_tokens if limits.packs or limits.max_tokens is None else limits.max_tokens // count
    size = of_each.sum(1) if limits.packs else of_each.max(1)
    unit_limits = replace(limits, num_rows=max(1, limits.num_rows // count), max_tokens=tokens, together=1)
    return [units[batch].ravel() for batch in micro_batches(size, np.arange(len(units)), unit_limits, at_least)]


def without_zero_gradient_rows(chunk: np.ndarray, idle: np.ndarray, lengths: np.ndarray, num_rows: int) -> np.ndarray:
    """The rows of the chunk that are not idle; if they are fewer than `num_rows`, with the shortest idle ones."""
    spare = chunk[idle[chunk]]
    missing = max(0, num_rows - (len(chunk) - len(spare)))
    chosen = spare[np.argsort(lengths[spare], kind="stable")[:missing]]
    return chunk[~idle[chunk] | np.isin(chunk, chosen)]
