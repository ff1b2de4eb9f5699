"""Forests of random rows against a dictionary of their prefixes."""

import numpy as np
import pytest

from roll.types.forest import OF_EXACT_PASSES, ON_CPUS, ON_GPUS, CallCosts, Forest, forest_of
from roll.types.packing import work

Rows = list[np.ndarray]


def rows_of(*texts: str) -> Rows:
    return [np.array([ord(letter) for letter in text]) for text in texts]


def tokens(forest: Forest, rows: Rows) -> list[int]:
    return np.concatenate(rows)[forest.source].tolist()


def test_trees_branch_where_that_saves_something() -> None:
    forest = forest_of([np.array([5, 6, 4]), np.array([5, 6, 7, 8])], least_saved=0)
    assert forest.source.tolist() == [0, 1, 2, 5, 6] and forest.depth.tolist() == [0, 1, 2, 2, 3]
    assert forest.start.tolist() == [0, 2, 3, 5] and forest.end.tolist() == [5, 3, 5]
    assert forest.level.tolist() == [0, 1, 1] and forest.first.tolist() == [0, 3]
    assert forest.places.tolist() == [0, 1, 2, 0, 1, 3, 4]
    row = np.arange(100)
    forest = forest_of([row[:n] for n in range(10, 101, 10)])
    assert forest.start.tolist() == [0, 100] and forest.num_tokens == 100
    row = np.arange(2000)
    rows = [np.append(row[:n], 5000 + n) for n in range(1, 2001)]
    forest = forest_of(rows, least_saved=0)
    assert forest.num_tokens == 4000 and forest.level.max() == 1999
    # Two rows with 3 tokens in common stand alone; with 32 they share, and a row that ends there costs no node.
    assert forest_of(rows_of("abcx", "abcy")).num_tokens == 8
    assert forest_of(rows_of("a" * 32 + "x", "a" * 32 + "y")).num_tokens == 34
    assert forest_of(rows_of("abc", "abcy")).num_tokens == 4
    assert forest_of(rows_of("abcx", "abcy", "abcz"), least_saved=6).num_tokens == 6
    assert forest_of(rows_of("abcx", "abcy", "abcz"), least_saved=7).num_tokens == 12
    prompt = "p" * 40
    forest = forest_of(rows_of(prompt + "abx", prompt + "aby", prompt + "c"))
    assert forest.num_tokens == 40 + 3 + 3 + 1 and forest.level.tolist() == [0, 1, 1, 1]
    one = np.stack([np.arange(50), np.zeros(50, np.int64)], 1)
    other = one.copy()
    other[45, 1] = 1
    assert forest_of([one, other]).num_tokens == 55


def test_a_path_is_the_tokens_of_ancestors_and_a_nodes_own() -> None:
    """The same forest; of two tokens that each sees, a branch's first one needs the last of the stem."""
    forest = forest_of([np.array([5, 6, 4]), np.array([5, 6, 7, 8])], least_saved=0)
    whole, narrow = forest.paths(), forest.paths(2)
    assert whole.keys.tolist() == [0, 1, 0, 1, 2, 0, 1, 3, 4] and narrow.keys.tolist() == [0, 1, 1, 2, 1, 3, 4]
    assert [part.num_keys.tolist() for part in (whole, narrow) if part.num_keys is not None] == [[2, 3, 4], [2, 2, 3]]
    assert whole.queries.tolist() == [[0, 2], [2, 3], [3, 5]] and (whole.window, narrow.window) == (0, 2)
    assert [(part.queries.tolist(), part.keys.tolist()) for part in whole.split(5)] == [
        ([[0, 2], [2, 3]], [0, 1, 0, 1, 2]),
        ([[3, 5]], [0, 1, 3, 4]),
    ]
    cut = forest_of([np.arange(5)]).paths(3, most=2)
    assert cut.queries.tolist() == [[0, 2], [2, 4], [4, 5]] and cut.keys.tolist() == [0, 1, 0, 1, 2, 3, 2, 3, 4]


def random_rows(seed: int) -> Rows:
    """Up to 12 rows of few letters: copies, beginnings and continuations of others, on many levels."""
    rng = np.random.default_rng(seed)
    rows: Rows = []
    for _ in range(int(rng.integers(1, 13))):
        base = rows[int(rng.integers(len(rows)))] if rows and rng.random() < 0.8 else np.zeros(0, np.int64)
        kept = base[: int(rng.integers(len(base) + 1))] if rng.random() < 0.8 else base
        more = int(rng.integers(0 if len(kept) else 1, 9))
        rows.append(np.concatenate([kept, rng.integers(0, 3, more)]))
    return rows


@pytest.mark.parametrize("seed", range(40))
def test_tokens_are_the_distinct_prefixes_and_see_exactly_what_stands_before_them(seed: int) -> None:
    rows = random_rows(seed)
    forest = forest_of(rows, least_saved=0)
    prefixes = {tuple(row[: c + 1].tolist()) for row in rows for c in range(len(row))}
    paths: dict[int, tuple[int, ...]] = {}
    for first, row in zip(forest.first, rows, strict=True):
        for column in range(len(row)):
            place = int(forest.places[first + column])
            prefix = tuple(row[: column + 1].tolist())
            assert paths.setdefault(place, prefix) == prefix and forest.depth[place] == column
    assert len(paths) == forest.num_tokens == len(prefixes), "every place is a prefix of its own"
    sees: dict[int, set[int]] = {place: set() for place in paths}
    for start, stop, end, is_root in forest.nodes:
        assert start < stop <= end and is_root == (forest.depth[start] == 0)
        for query in range(start, end):
            sees[query] |= set(range(start, min(stop, query + 1)))
    for place, path in paths.items():
        assert {paths[seen] for seen in sees[place]} == {path[: n + 1] for n in range(len(path))}
    for node, (start, stop, end, _) in enumerate(forest.nodes):
        above = [other for other in forest.nodes if other[1] <= start and end <= other[2]]
        assert forest.level[node] == len(above)
        if stop < end:
            assert sum(forest.depth[start:end] == forest.depth[stop - 1] + 1) > 1, "a node ends where rows part"


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_rows_changes_nothing_but_where_they_are(seed: int) -> None:
    rows = random_rows(seed)
    order = np.random.default_rng(seed + 1).permutation(len(rows))
    one, other = forest_of(rows, least_saved=0), forest_of([rows[at] for at in order], least_saved=0)
    assert tokens(one, rows) == tokens(other, [rows[at] for at in order])
    assert one.nodes == other.nodes
    for at, its in enumerate(order):
        span = slice(one.first[its], one.first[its] + len(rows[its]))
        mine = slice(other.first[at], other.first[at] + len(rows[its]))
        assert one.places[span].tolist() == other.places[mine].tolist()


def test_work_of_shared_prefixes_is_their_tokens_and_pairs() -> None:
    """Rows of 3 and 4 tokens share 2: 5 of 7 tokens, and 3 of 6 + 10 pairs once instead of twice."""
    assert forest_of([np.array([5, 6, 4]), np.array([5, 6, 7, 8])], least_saved=0).shared_work() == (7, 5, 3)
    for seed in range(10):
        rows = random_rows(seed)
        forest = forest_of(rows, least_saved=0)
        pairs = 0
        for part in forest.parts:
            for (first, last), (start, stop) in zip(part.queries.tolist(), part.keys.tolist(), strict=True):
                pairs += (last - first) * (last - first + 1) // 2 if part.is_causal else (last - first) * (stop - start)
        of_rows = sum(len(row) * (len(row) + 1) // 2 for row in rows)
        assert forest.shared_work() == (sum(map(len, rows)), forest.num_tokens, of_rows - pairs)


def test_costs_are_tokens_pairs_nodes_and_copies_of_keys() -> None:
    """A prompt of 512 with 8 answers of 64: 9 nodes, 1024 tokens, a level below the first."""
    prompt = np.zeros(512, np.int64)
    forest = forest_of([np.concatenate([prompt, np.full(64, at + 1)]) for at in range(8)])
    pairs = 512**2 / 2 + 8 * (64**2 / 2 + 64 * 512)
    assert forest.costs(CallCosts(node=16)) == pytest.approx([1024 + pairs * 2 / 24_576 + 9 * 16])
    assert forest.costs(CallCosts(ancestor=0.5)) == pytest.approx([1024 + pairs * 2 / 24_576 + 8 * 256])
    assert forest_of([prompt]).costs(CallCosts()) == pytest.approx(work(np.array([512])))
    # Sharing 40 of 1000 tokens in two rows saves less than a tenth; another group in the batch stays a tree.
    begin, group = np.full(40, 7), np.full(300, 9)
    rows = [np.concatenate([begin, np.full(960, at)]) for at in (1, 2)]
    rows += [np.append(group, at) for at in range(4)]
    assert forest_of(rows).num_tokens == 40 + 2 * 960 + 304
    assert forest_of(rows, ON_CPUS).num_tokens == 2000 + 304
    # 40 answers of one token to a prompt of 40: 80 tokens instead of 1640, and 1600 copies of keys, which cost 48.
    rows = [np.append(np.full(40, 9), at) for at in range(40)]
    assert forest_of(rows, ON_GPUS).num_tokens == 80
    assert forest_of(rows, CallCosts(ancestor=1.0)).num_tokens == 41 * 40
    turns = np.arange(100)
    assert forest_of([turns[:40], turns], ON_GPUS).num_tokens == 100


def test_exact_passes_pay_for_the_attention_of_every_row() -> None:
    """A prompt of 512 with 8 answers of 64, one row that ends in it, and one alone: tokens once, pairs of all rows."""
    prompt = np.zeros(512, np.int64)
    rows = [*(np.append(prompt, np.full(64, at + 1)) for at in range(8)), prompt[:300], np.full(70, 9)]
    pairs = 8 * 576**2 / 2 + 300**2 / 2
    costs = forest_of(rows).costs(OF_EXACT_PASSES)
    assert costs == pytest.approx([1024 + pairs * 2 / 24_576, *work(np.array([70]))])
    # Two rows of 100,000 tokens with half in common: 964,000 instead of 1,014,000, of which attention is 814,000.
    long = [np.append(np.zeros(50_000, np.int64), np.full(50_000, at)) for at in (1, 2)]
    assert forest_of(long, ON_CPUS).num_tokens == 150_000
    assert forest_of(long, OF_EXACT_PASSES).num_tokens == 200_000
