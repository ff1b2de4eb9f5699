"""Rows of tokens that begin alike, as trees: every token once. Index arithmetic, numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from roll.types.metrics import SharedWork
from roll.types.packing import in_order, pair_work, ranges, work

LEAST_SAVED = 32  # tokens that sharing a node has to save
_LEAST_FACTOR = 1.1  # by which a tree has to be cheaper than its rows


class CallCosts(NamedTuple):
    """Costs of attention in every layer beside its pairs, in tokens of a short row."""

    node: float = 0.0
    ancestor: float = 0.0  # a key of a node's ancestors, which is copied for it
    by_row: bool = False  # pairs of a token count once for every row that has it


ON_CPUS = CallCosts(node=16)  # measured at a hidden size of 256
ON_GPUS = CallCosts(ancestor=0.03)  # 7 ns forward and backward, of .22 us for a token in a layer of a 0.5B (H200)
OF_EXACT_PASSES = CallCosts(by_row=True)  # their attention takes rows as they are (`roll/models/exact/rows.py`)


class Part(NamedTuple):
    """A part of the attention of a forest: slice i of `queries` sees slice i of `keys`, int64 [slices, 2], start and
    stop."""

    queries: np.ndarray  # spans
    keys: np.ndarray  # spans; with `num_keys` tokens, int64 [keys], slice after slice
    is_causal: bool  # the last query sees all keys, each one before it one less; else all see all of their slice
    is_first: bool  # no part before has these queries
    window: int = 0  # where it is causal, how many keys a query sees at most; 0: all
    num_keys: np.ndarray | None = None  # int64 [slices]

    def split(self, most_keys: int) -> list[Part]:
        """Parts of about so many keys, at least a slice each. Where `num_keys` are known."""
        assert self.num_keys is not None
        ends = self.num_keys.cumsum()
        bounds = np.flatnonzero(np.diff((ends - self.num_keys) // most_keys)) + 1
        queries, num_keys = np.split(self.queries, bounds), np.split(self.num_keys, bounds)
        keys = np.split(self.keys, ends[bounds - 1])
        return [self._replace(queries=q, keys=k, num_keys=n) for q, k, n in zip(queries, keys, num_keys, strict=True)]


@dataclass(frozen=True)
class Forest:
    """B rows with M tokens as N distinct ones, in K nodes: chains of tokens that the same rows have.

    Tokens are in depth-first order: the descendants of a node are one slice right behind its own tokens. A row that is
    the beginning of another has no node of its own.

    Example: rows [5 6 4] and [5 6 7 8] are tokens [5 6 4 7 8]: source [0 1 2 5 6], depth [0 1 2 2 3], start [0 2 3 5],
    end [5 3 5], level [0 1 1], first [0 3], places [0 1 2 0 1 3 4].
    """

    source: np.ndarray  # int64 [N]: which of the M tokens of the rows, row after row, this is
    depth: np.ndarray  # int64 [N]: its column in its row
    start: np.ndarray  # int64 [K + 1]: node k is tokens [start[k], start[k + 1]), which see each other causally
    end: np.ndarray  # int64 [K]: the descendants of node k are tokens [start[k + 1], end[k]), which see all of it
    level: np.ndarray  # int64 [K]: number of ancestors
    first: np.ndarray  # int64 [B]: where each row begins in `places`
    places: np.ndarray  # int64 [M]: which of the N each token of the rows is, row after row

    @property
    def num_tokens(self) -> int:
        return len(self.source)

    @cached_property
    def nodes(self) -> list[tuple[int, int, int, bool]]:
        """Start and stop of every node, the end of its descendants, and whether it has no ancestors."""
        return list(
            zip(
                self.start[:-1].tolist(),
                self.start[1:].tolist(),
                self.end.tolist(),
                (self.level == 0).tolist(),
                strict=True,
            )
        )

    @cached_property
    def parts(self) -> list[Part]:
        """The attention of all tokens, node by node: its tokens are keys for themselves (causal) and for its
        descendants, which are right behind it and see every one of them."""
        return [
            Part(np.array([[first, stop_]]), np.array([[start, stop]]), is_causal, is_root)
            for start, stop, end, is_root in self.nodes
            for first, stop_, is_causal in ((start, stop, True), (stop, end, False))
            if first < stop_
        ]

    @cached_property
    def levels(self) -> list[Part]:
        """The same in as few parts as there are levels: what nodes see of themselves, and what descendants see of the
        nodes of each level, of which none is below another."""
        nodes = np.stack([self.start[:-1], self.start[1:]], 1)
        below = np.stack([self.start[1:], self.end], 1)
        has_children = below[:, 0] < below[:, 1]
        levels = [(self.level == level) & has_children for level in range(int(self.level.max()))]
        return [Part(nodes, nodes, True, True), *(Part(below[at], nodes[at], False, False) for at in levels)]

    def paths(self, window: int = 0, most: int = 0) -> Part:
        """All attention with each node once: its keys are those of its ancestors and its own. `window`: tokens that
        each sees, itself and those before it; keys that none sees are left out. 0 is all of its row. `most`: tokens of
        a slice of queries, where nodes are cut."""
        starts, counts = self.start[:-1], np.diff(self.start)
        if most:
            pieces = -(-counts // most)
            starts = np.repeat(starts, pieces) + ranges(np.zeros_like(pieces), pieces) * most
            counts = np.diff(starts, append=self.num_tokens)
        above = self.depth[starts]
        if window:
            above = np.minimum(above, window - 1)
        num_keys = above + counts
        begin = num_keys.cumsum() - num_keys
        keys = np.empty(int(num_keys.sum()), np.int64)
        # A token's ancestors stand before it in a row that has it.
        keys[ranges(begin, above)] = self.places[ranges(self.source[starts] - above, above)]
        keys[ranges(begin + above, counts)] = np.arange(self.num_tokens)
        return Part(np.stack([starts, starts + counts], 1), keys, True, True, window, num_keys)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.depth.max()) + 1

    def shared_work(self) -> SharedWork:
        depths = [int((each + 1).sum()) for each in (self.depth, self.depth[self.places])]
        return SharedWork(len(self.places), self.num_tokens, depths[1] - depths[0])

    def costs(self, calls: CallCosts) -> np.ndarray:
        """Cost of every tree, in tokens of a short row: its matrices, its attention, its calls."""
        starts = self.start[:-1]
        times = np.bincount(self.places, minlength=self.num_tokens) if calls.by_row else 1
        pairs = np.add.reduceat((self.depth + 0.5) * times, starts)
        nodes = np.diff(self.start) + pair_work(pairs) + calls.node + self.depth[starts] * calls.ancestor
        return np.add.reduceat(nodes, np.flatnonzero(self.level == 0))


def forest_of(keys: Sequence[np.ndarray], calls: CallCosts | None = None, least_saved: int = LEAST_SAVED) -> Forest:
    """The forest of B rows. `keys[i]` [tokens, ...] holds all that a token is computed with: tokens are shared where
    these and all before them are equal, of one dtype in all rows. A branching that saves less than `least_saved` tokens
    is not made; by the costs of `calls`, rows that are not cheaper as a tree stand alone. Ranks with the same rows have
    the same forest."""
    # Sorted rows with a common beginning are neighbours, so the overlap of neighbours describes the whole forest.
    counts = np.array([len(key) for key in keys])
    order, shared = in_order(keys)
    _lower_small(shared, counts[order], least_saved)
    forest = _laid_out(order, shared, counts)
    if calls is not None and _lower_dear(forest, order, shared, counts, calls):
        forest = _laid_out(order, shared, counts)
    _check(forest, keys, counts)
    return forest


def _lower_small(shared: np.ndarray, counts: np.ndarray, least_saved: int) -> None:
    """Lowers branchings that save few tokens to the branching before. `shared[i]`: tokens that row i of the order has
    in common with row i - 1, and `counts[i]` its own."""
    spans = [(1, len(shared), 0)]  # rows first - 1 to stop begin with `above` tokens, of which they share more
    while spans:
        first, stop, above = spans.pop()
        if first >= stop:
            continue
        # The least overlap in the span is where its rows branch first; rows with more branch again below.
        here = int(shared[first:stop].min())
        at = first + np.flatnonzero(shared[first:stop] == here)
        children = list(zip([first - 1, *at], [*at, stop], strict=True))
        saves_little = above < here and (here - above) * len(at) < least_saved
        # A row that ends here costs no node: with one child beside it there is none to save.
        if saves_little and sum(counts[last - 1] > here for _, last in children) > 1:
            shared[at] = here = above
        spans += [(begin + 1, last, here) for begin, last in children]


def _lower_dear(forest: Forest, order: np.ndarray, shared: np.ndarray, counts: np.ndarray, calls: CallCosts) -> bool:
    """Parts the rows of trees that do not pay. True if there are some."""
    # A row that shares nothing with the one before it begins a new tree.
    tree_of_row = np.cumsum(shared == 0) - 1  # in the order, in which trees stand one after the other
    flat_costs = np.bincount(tree_of_row, work(counts[order]) + calls.node)
    dear = flat_costs < _LEAST_FACTOR * forest.costs(calls)
    parted = dear[tree_of_row] & (shared > 0)
    shared[parted] = 0
    return bool(parted.any())


def _laid_out(order: np.ndarray, shared: np.ndarray, counts: np.ndarray) -> Forest:
    offsets = np.cumsum(counts) - counts
    # Each row adds only the tokens behind its overlap with the row before it.
    new = counts[order] - shared  # tokens that each row of the order adds
    begin = np.cumsum(new) - new
    num_tokens = int(new.sum())
    row = np.repeat(np.arange(len(order)), new)
    depth = np.arange(num_tokens) - begin[row] + shared[row]
    source = offsets[order[row]] + depth
    places = np.empty(int(counts.sum()), np.int64)
    # Inside a row, the parent of a token is the token before it; only the first new token of a row hangs elsewhere.
    parent = np.arange(-1, num_tokens - 1)
    path = places[:0]
    for i, at in enumerate(order):
        before, path = path, places[offsets[at] : offsets[at] + counts[at]]
        path[: shared[i]] = before[: shared[i]]
        path[shared[i] :] = np.arange(begin[i], begin[i] + new[i])
        if new[i]:
            parent[begin[i]] = path[shared[i] - 1] if shared[i] else -1
    num_children = np.bincount(parent[parent >= 0], minlength=num_tokens)
    # A node starts at a root, and behind every token at which rows branch.
    starts = (parent < 0) | (num_children[parent] > 1)
    start = np.append(np.flatnonzero(starts), num_tokens)
    node_of = np.cumsum(starts) - 1
    above = [int(node_of[parent[s]]) if parent[s] >= 0 else -1 for s in start[:-1]]
    level, end = np.zeros(len(above), np.int64), start[1:].copy()
    # A node's parent has a smaller number, so one pass downwards sets the levels and one upwards the ends.
    for node, its in enumerate(above):
        level[node] = level[its] + 1 if its >= 0 else 0
    for node in range(len(above) - 1, -1, -1):
        if above[node] >= 0:
            end[above[node]] = max(end[above[node]], end[node])
    return Forest(source, depth, start, end, level, offsets, places)


def _check(forest: Forest, keys: Sequence[np.ndarray], counts: np.ndarray) -> None:
    """AssertionError, a bug, unless every row is found again."""
    flat = np.concatenate(keys)
    wrong = (flat[forest.source][forest.places] != flat).reshape(len(flat), -1).any(1)
    wrong |= forest.depth[forest.places] != np.arange(len(flat)) - np.repeat(forest.first, counts)
    assert not wrong.any(), f"row {np.repeat(np.arange(len(keys)), counts)[wrong][0]} is not in its forest"
