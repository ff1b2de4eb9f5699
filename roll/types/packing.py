"""Index arithmetic: which rows go to which rank, update and micro batch. Knows lengths, not tokens."""

import heapq
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

_LINEAR = 24_576  # tokens of a row whose attention costs as much as its matrices: 6 x a hidden size of 4096


def work(lengths: np.ndarray) -> np.ndarray:
    """Compute the cost of rows, in tokens of a short row: matrix products cost one per token, attention grows with the
    square of the length (a row of 24 576 tokens costs 49 152)."""
    tokens = np.asarray(lengths, np.float64)
    return tokens + pair_work(tokens**2 / 2)


def pair_work(pairs: np.ndarray) -> np.ndarray:
    """Compute the cost of so many pairs of tokens that attend to each other, in tokens of a short row."""
    return pairs * (2 / _LINEAR)


def balance(lengths: np.ndarray, num_parts: int) -> list[np.ndarray]:
    """Splits rows into parts of equal count and nearly equal work (longest first onto the lightest part with room):
    lengths [9 1 5 5 7 3] in 2 parts -> [0 3 1] and [4 2 5]. ValueError if they do not divide."""
    if len(lengths) % num_parts:
        raise ValueError(f"{len(lengths)} rows do not divide into {num_parts} parts")
    room = len(lengths) // num_parts
    costs = work(lengths)
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    lightest = [(0.0, part) for part in range(num_parts)]
    for row in np.argsort(-lengths, kind="stable"):
        load, part = heapq.heappop(lightest)
        parts[part].append(int(row))
        if len(parts[part]) < room:
            heapq.heappush(lightest, (load + float(costs[row]), part))
    return [np.array(part, np.int64) for part in parts]


def rows_by_rank(lengths: np.ndarray, order: np.ndarray, num_updates: int, num_ranks: int) -> list[np.ndarray]:
    """The rows of each rank, update after update: `order` is cut into updates of equal size, the rows of each are
    balanced over the ranks. ValueError if they do not divide."""
    if len(order) % (num_updates * num_ranks):
        raise ValueError(f"{len(order)} rows do not divide into {num_updates} updates on {num_ranks} ranks")
    ranks: list[list[np.ndarray]] = [[] for _ in range(num_ranks)]
    for update in np.split(order, num_updates):
        for rank, part in enumerate(balance(lengths[update], num_ranks)):
            ranks[rank].append(update[part])
    return [np.concatenate(parts) for parts in ranks]


def groups_by_rank(
    lengths: np.ndarray,
    own_lengths: np.ndarray,
    groups: np.ndarray,
    order: np.ndarray,
    num_updates: int,
    num_ranks: int,
) -> list[np.ndarray]:
    """Rows by rank where those of a group begin alike and are computed as a tree: they stay on one rank that has room,
    the heaviest group first. `own_lengths`: tokens of a row that the others of its group do not have. Ranks have
    equally many rows of every update, so a group may be cut; where groups save less than a tenth, rows are balanced one
    by one."""
    units = [u for update in np.split(order, num_updates) for u in _units(lengths, own_lengths, groups, update)]
    alone, together = work(lengths[order]).sum(), sum(cost for cost, _ in units)
    # Keeping a group together costs balance, which a saving of less than a tenth does not pay for.
    if alone < 1.1 * together:
        return rows_by_rank(lengths, order, num_updates, num_ranks)
    ranks: list[list[np.ndarray]] = [[] for _ in range(num_ranks)]
    for update in np.split(order, num_updates):
        room, loads = np.full(num_ranks, len(update) // num_ranks), np.zeros(num_ranks)
        for _, unit in _units(lengths, own_lengths, groups, update):
            while len(unit):
                # Ranks that can take the whole unit; if none can, those with the most room, and the unit is cut.
                able = room >= min(len(unit), room.max())
                rank = int(np.where(able, loads, np.inf).argmin())
                taken, unit = unit[: room[rank]], unit[room[rank] :]
                ranks[rank].append(taken)
                room[rank] -= len(taken)
                # The rest of a cut unit computes the common beginning again, on the next rank.
                loads[rank] += _tree_work(lengths[taken], own_lengths[taken])
    return [np.concatenate(parts) for parts in ranks]


def _units(
    lengths: np.ndarray, own_lengths: np.ndarray, groups: np.ndarray, rows: np.ndarray
) -> list[tuple[float, np.ndarray]]:
    """Cost and rows of each group, the dearest first; the rows in the order of their lengths, as turns follow."""
    weighted = []
    for group in np.unique(groups[rows]):
        unit = rows[groups[rows] == group]
        # Turns of an episode follow each other by length: a cut falls between turns. Stable: the same on all ranks.
        unit = unit[np.argsort(lengths[unit], kind="stable")]
        weighted.append((_tree_work(lengths[unit], own_lengths[unit]), unit))
    return sorted(weighted, key=lambda unit: -unit[0])


def _tree_work(lengths: np.ndarray, own_lengths: np.ndarray) -> float:
    """Approximate cost of rows as a tree: the longest row whole, and the own tokens of the others."""
    longest = int(lengths.argmax())
    return float(work(lengths[longest])) + float(own_lengths.sum() - own_lengths[longest])


def neighbours_by_rank(lengths: np.ndarray, together: int, num_ranks: int) -> list[np.ndarray]:
    """The rows of each rank in one update, balanced; `together` neighbours stay neighbours: lengths [1 2 9 9 5 5 4 4]
    in pairs on 2 ranks -> [2 3 0 1] and [4 5 6 7]."""
    units = np.arange(len(lengths)).reshape(-1, together)
    parts = rows_by_rank(lengths[units].sum(1), np.arange(len(units)), 1, num_ranks)
    return [units[part].ravel() for part in parts]


def parts_in_order(num_rows: int, together: int, num_ranks: int) -> list[np.ndarray]:
    """All rows in their order, in about equal parts, at most one per rank; `together` neighbours stay in one part."""
    units = np.arange(num_rows).reshape(-1, together)
    return [part.ravel() for part in np.array_split(units, min(len(units), num_ranks))]


def micro_batches_by_count(lengths: np.ndarray, rows: np.ndarray, rows_per_micro_batch: int) -> list[np.ndarray]:
    """Micro batches of a fixed row count (the last may be smaller), rows of similar length together to save padding."""
    by_length = rows[np.argsort(-lengths[rows], kind="stable")]
    return [by_length[i : i + rows_per_micro_batch] for i in range(0, len(rows), rows_per_micro_batch)]


def micro_batches_by_tokens(
    lengths: np.ndarray, rows: np.ndarray, max_tokens: int, round_to: int = 1
) -> list[np.ndarray]:
    """Micro batches whose padded size stays within `max_tokens`; a longer row stands alone."""
    by_length = rows[np.argsort(-lengths[rows], kind="stable")]
    batches: list[np.ndarray] = []
    start = 0
    while start < len(by_length):
        width = -(-int(lengths[by_length[start]]) // round_to) * round_to
        count = max(1, max_tokens // width)
        batches.append(by_length[start : start + count])
        start += count
    return batches


def packs(lengths: np.ndarray, rows: np.ndarray, max_tokens: int, at_least: int = 1) -> list[np.ndarray]:
    """Rows in packs of at most `max_tokens` (a longer row stands alone): as few as first-fit decreasing needs, but
    `at_least` (or one per row, if there are fewer), made even in work where that keeps the limit."""
    by_length = rows[np.argsort(-lengths[rows], kind="stable")]
    fitted = _first_fit(lengths, by_length, max_tokens)
    count = min(max(len(fitted), at_least), len(rows))
    even = _lightest_first(lengths, by_length, count)
    if all(len(pack) == 1 or int(lengths[pack].sum()) <= max_tokens for pack in even):
        return even
    return split_to(fitted, count)


def split_to(batches: list[np.ndarray], count: int) -> list[np.ndarray]:
    """The same rows in exactly `count` micro batches: those with the most rows are halved."""
    batches = list(batches)
    while len(batches) < count:
        largest = max(range(len(batches)), key=lambda i: len(batches[i]))
        batches[largest : largest + 1] = np.array_split(batches[largest], 2)
    return batches


def _first_fit(lengths: np.ndarray, rows: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """Every row into the first pack with room for it."""
    filled: list[list[int]] = []
    loads: list[int] = []
    for row in rows:
        length = int(lengths[row])
        place = next((i for i, load in enumerate(loads) if load + length <= max_tokens), None)
        if place is None:
            filled.append([int(row)])
            loads.append(length)
        else:
            filled[place].append(int(row))
            loads[place] += length
    return [np.array(pack, np.int64) for pack in filled]


def _lightest_first(lengths: np.ndarray, rows: np.ndarray, count: int) -> list[np.ndarray]:
    """Every row onto the lightest of `count` packs."""
    costs = work(lengths)
    filled: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0.0, pack) for pack in range(count)]
    for row in rows:
        load, pack = heapq.heappop(lightest)
        filled[pack].append(int(row))
        heapq.heappush(lightest, (load + float(costs[row]), pack))
    return [np.array(pack, np.int64) for pack in filled]


# Rows that begin alike, of which each token may be computed once (`forest.py`).


def token_keys(ids: np.ndarray, routes: np.ndarray | None) -> np.ndarray:
    """All that a token is computed with: its id, and its experts where they are given, int16 [..., layers, k]. Of ids
    [...] int32 the same, or with experts int16 [..., numbers]."""
    ids = ids.astype(np.int32, copy=False)
    if routes is None:
        return ids
    return np.concatenate([ids[..., None].view(np.int16), routes.reshape(*ids.shape, -1)], axis=-1)


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Numbers from each start on, as many as its count: starts [5 0] with counts [2 3] make [5 6 0 1 2]."""
    return np.arange(counts.sum()) + np.repeat(starts - (counts.cumsum() - counts), counts)


def in_order(keys: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The rows with those that begin alike as neighbours [B], and the tokens that each has in common with the one
    before [B]."""
    # Sorted by bytes, rows that begin alike are neighbours, whatever the order of single tokens.
    texts = [np.ascontiguousarray(key).tobytes() for key in keys]
    order = np.array(sorted(range(len(keys)), key=texts.__getitem__), np.int64)
    return order, np.array([0, *(_shared(keys[a], keys[b]) for a, b in pairwise(order))], np.int64)


def _shared(one: np.ndarray, other: np.ndarray) -> int:
    """Tokens with which both rows begin."""
    longest = min(len(one), len(other))
    differs = one[:longest] != other[:longest]
    differs = differs.reshape(longest, -1).any(1)
    return int(differs.argmax()) if differs.any() else longest
