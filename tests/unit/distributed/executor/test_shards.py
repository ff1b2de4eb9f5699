from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.executor.blueprint import BatchLimits
from roll.distributed.executor.jobs import (
    RowChunk,
    ScorePiece,
    ScoreSet,
    join_scores,
    micro_batches,
    spread,
    tree_micro_batches,
    without_zero_gradient_rows,
)
from roll.types.forest import forest_of
from roll.types.packing import neighbours_by_rank


def lengths_of(*lengths: int) -> np.ndarray:
    return np.array(lengths, np.int32)


def test_shards_and_micro_batches_are_by_count_tokens_or_packs():
    assert spread([lengths_of(9, 9), lengths_of(1)], 2) == [[RowChunk(0, 0, 2)], [RowChunk(1, 0, 1)]]
    lengths, rows = lengths_of(3, 9, 4, 8), np.arange(4)
    assert [list(b) for b in micro_batches(lengths, rows, BatchLimits(3))] == [[1, 3, 2], [0]]
    assert [list(b) for b in micro_batches(lengths, rows, BatchLimits(1, 18))] == [[1, 3], [2, 0]]
    assert [list(b) for b in micro_batches(lengths, rows, BatchLimits(1, 12, packs=True))] == [[1, 0], [3, 2]]
    idle, lengths = np.array([False, True, True, False, True, True]), lengths_of(5, 4, 2, 9, 3, 1)
    assert without_zero_gradient_rows(np.array([4, 0, 2, 3]), idle, lengths, 1).tolist() == [0, 3]
    assert without_zero_gradient_rows(np.array([4, 0, 2, 3]), idle, lengths, 3).tolist() == [0, 2, 3]
    assert without_zero_gradient_rows(np.array([4, 1, 2]), idle, lengths, 1).tolist() == [2]


def test_rows_are_spread_by_tokens():
    assert spread([lengths_of(2, 2, 2, 2), lengths_of(4, 4)], 2 + 2) == [
        [RowChunk(0, 0, 2)],
        [RowChunk(0, 2, 4)],
        [RowChunk(1, 0, 1)],
        [RowChunk(1, 1, 2)],
    ]
    assert spread([lengths_of(5), lengths_of(5), lengths_of(10)], 2) == [
        [RowChunk(0, 0, 1), RowChunk(1, 0, 1)],
        [RowChunk(2, 0, 1)],
    ]


def test_limits_follow_the_roles_settings():
    plan = TrainPlan("actor_train", 64, 4, 2, 2, 1, steps=1, warmup_updates=0, infer_batch_size=16)
    packed = {
        "use_sequence_packing": True,
        "sequence_packing_args": {
            "algorithm": "load_balance",
            "max_packed_sequence_length_train": 100,
            "max_packed_sequence_length_forward": 200,
            "min_num_micro_batches_train": 3,
        },
    }
    dynamic = {"use_dynamic_batching_in_train": True, "max_tokens_per_microbatch_in_train": 50}
    for settings, training, scoring in (
        ({}, BatchLimits(4), BatchLimits(16)),
        ({"use_sequence_packing": True}, BatchLimits(4), BatchLimits(16)),
        (dynamic, BatchLimits(4, 50, 4), BatchLimits(16)),
        (dynamic | {"use_sequence_packing": True}, BatchLimits(4, 50, packs=True), BatchLimits(16)),
        (
            {
                "use_sequence_packing": True,
                "use_dynamic_batching_in_infer": True,
                "max_tokens_per_microbatch_in_infer": 70,
            },
            BatchLimits(4),
            BatchLimits(16, 70, packs=True),
        ),
        (packed, BatchLimits(4, 100, packs=True, at_least=3), BatchLimits(16, 200, packs=True)),
    ):
        worker = WorkerConfig.model_validate(settings)
        assert BatchLimits.for_training(worker, plan) == training
        assert BatchLimits.for_scoring(worker) == scoring


@pytest.mark.parametrize(
    "limits", [BatchLimits(3), BatchLimits(1, 18), BatchLimits(1, 18, packs=True)], ids=["count", "padded", "packed"]
)
def test_ranks_that_need_fewer_micro_batches_make_as_many_as_the_others(limits: BatchLimits):
    """Down to single rows; the limit on tokens holds."""
    lengths, rows = lengths_of(3, 9, 4, 8, 1), np.arange(5)
    for count in range(len(micro_batches(lengths, rows, limits)), 6):
        made = micro_batches(lengths, rows, limits, count)
        assert len(made) == count
        assert sorted(int(row) for batch in made for row in batch) == list(range(5))
        if limits.packs:
            assert max(int(lengths[batch].sum()) for batch in made) <= 18


def test_scores_are_joined_by_row_id():
    pieces = [
        (np.array([4, 0]), lengths_of(2, 1), np.array([40.0, 41.0, 1.0], np.float32)),
        (np.array([7]), lengths_of(3), np.array([70.0, 71.0, 72.0], np.float32)),
    ]
    joined = join_scores(pieces, np.array([7, 0, 9]), lengths_of(3, 1, 2), np.array([True, True, False]))
    assert joined.tolist() == [70, 71, 72, 1, 0, 0]
    assert joined.dtype == np.float32
    piece = (np.array([4]), lengths_of(2), np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="no scores for rows \\[5\\]"):
        join_scores([piece], np.array([4, 5]), lengths_of(2, 2), np.array([True, True]))
    with pytest.raises(ValueError, match="disagree on the length"):
        join_scores([piece], np.array([4]), lengths_of(3), np.array([True]))
    first = ScorePiece(np.array([0, 2]), lengths_of(1, 1), "a")
    second = ScorePiece(np.array([1, 3]), lengths_of(1, 1), "b")
    assert ScoreSet((first, second)).of(np.array([3, 9])) == (second,)


@given(
    lengths=st.lists(st.integers(1, 30), min_size=2, max_size=24).filter(lambda found: len(found) % 2 == 0),
    limits=st.sampled_from(
        [
            BatchLimits(2, together=2),
            BatchLimits(6, together=2),
            BatchLimits(1, max_tokens=70, together=2),
            BatchLimits(1, max_tokens=70, round_to=4, together=2),
            BatchLimits(1, max_tokens=70, packs=True, at_least=2, together=2),
        ]
    ),
)
def test_pairs_are_never_split(lengths: list[int], limits: BatchLimits) -> None:
    of_rows = np.array(lengths, np.int32)
    groups = micro_batches(of_rows, np.arange(len(of_rows)), limits)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(of_rows)))
    for group in groups:
        assert (group[::2] % 2 == 0).all() and (group[1::2] == group[::2] + 1).all()
        if limits.max_tokens is None:
            assert len(group) <= limits.num_rows
        elif len(group) > 2:
            width = -(-int(of_rows[group].max()) // limits.round_to) * limits.round_to
            size = int(of_rows[group].sum()) if limits.packs else len(group) * width
            assert size <= limits.max_tokens
    pairs = len(of_rows) // 2
    assert len(micro_batches(of_rows, np.arange(len(of_rows)), limits, at_least=pairs)) == pairs
    for rank in (part for ranks in (1, pairs) for part in neighbours_by_rank(of_rows, 2, ranks)):
        assert (rank[::2] % 2 == 0).all() and (rank[1::2] == rank[::2] + 1).all()


def groups_of(*sizes: int, prompt: int = 40, answer: int = 10) -> list[np.ndarray]:
    """Answers of some groups, one of each after the other."""
    generator, rows = np.random.default_rng(0), []
    prompts = [generator.integers(0, 99, prompt) for _ in sizes]
    for at in range(max(sizes)):
        for start, size in zip(prompts, sizes, strict=True):
            if at < size:
                rows.append(np.concatenate([start, generator.integers(100, 999, answer)]))
    return rows


def computed_tokens(keys: list[np.ndarray], batch: np.ndarray) -> int:
    return forest_of([keys[row] for row in batch], least_saved=0).num_tokens


def test_rows_that_begin_alike_stay_together_and_count_what_is_computed() -> None:
    keys = groups_of(4, 4)
    batches = tree_micro_batches(keys, np.arange(8), BatchLimits(4))
    assert [sorted(batch.tolist()) for batch in batches] in ([[0, 2, 4, 6], [1, 3, 5, 7]], [[1, 3, 5, 7], [0, 2, 4, 6]])
    # 8 rows of 50 tokens are 400, and 160 as trees: 80 of each group.
    keys = groups_of(4, 4)
    assert len(tree_micro_batches(keys, np.arange(8), BatchLimits(1, max_tokens=160))) == 1
    two = tree_micro_batches(keys, np.arange(8), BatchLimits(1, max_tokens=159))
    assert [computed_tokens(keys, batch) for batch in two] == [80, 80], "even, and no group is cut"
    assert [len(batch) for batch in tree_micro_batches(keys, np.arange(8), BatchLimits(1, max_tokens=1))] == [1] * 8
    # Four pairs of rows of 25 tokens, 15 of which both have: 140 distinct tokens, and 200 that are computed.
    keys, limits = groups_of(2, 2, 2, 2, prompt=15), BatchLimits(1, max_tokens=140)
    assert [len(batch) for batch in tree_micro_batches(keys, np.arange(8), limits)] == [8]
    batches = tree_micro_batches(keys, np.arange(8), limits, computed=shared_tokens)
    assert [len(batch) for batch in batches] == [5, 3] and sorted(np.concatenate(batches)) == [*range(8)]


def shared_tokens(keys: Sequence[np.ndarray]) -> int:
    return forest_of(keys).num_tokens


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    prompt=st.sampled_from([0, 5, 20, 40]),
    limits=st.sampled_from([BatchLimits(3), BatchLimits(1, max_tokens=90), BatchLimits(1, max_tokens=200, packs=True)]),
    at_least=st.integers(1, 6),
)
def test_tree_micro_batches_hold_every_row_once_within_their_limits(
    sizes: list[int], prompt: int, limits: BatchLimits, at_least: int
) -> None:
    keys, rows = groups_of(*sizes, prompt=prompt), np.arange(sum(sizes)) + 7
    batches = tree_micro_batches(keys, rows, limits, at_least, shared_tokens)
    assert sorted(np.concatenate(batches).tolist()) == rows.tolist() and len(batches) >= min(at_least, len(rows))
    for batch in batches:
        assert len(batch) <= limits.num_rows or limits.max_tokens is not None
        if limits.max_tokens is not None and len(batch) > 1:
            assert shared_tokens([keys[row] for row in batch - 7]) <= limits.max_tokens
