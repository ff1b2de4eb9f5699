"""Flat rows, padding and index arithmetic against plain Python lists."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.types.batch import SampleBatch, TaughtRows, TrainBatch
from roll.types.collate import collate_groups, pad, padding_rows, row_meta, sampled_rows, split_rows, unpad
from roll.types.columns import sum_rows, token_indices
from roll.types.failures import causes_of
from roll.types.packing import (
    balance,
    groups_by_rank,
    micro_batches_by_count,
    micro_batches_by_tokens,
    packs,
    parts_in_order,
    rows_by_rank,
    work,
)
from roll.types.rollout import Generation, LocalRow, SamplingParams, Task, Trajectory, TrajectoryGroup

PROMPT = np.array([11, 12], np.int32)


def group_of(responses: list[list[int]], group_id: int = 0, failures: tuple[int, ...] = ()) -> TrajectoryGroup:
    trajectories = []
    for index, tokens in enumerate(responses):
        size = len(tokens)
        generation = Generation(
            np.array(tokens, np.int32), -np.arange(1, size + 1, dtype=np.float32), np.full(size, 3, np.int32), "stop"
        )
        trajectories.append(
            Trajectory.from_generation(
                PROMPT,
                generation,
                float(index),
                index=index,
                response_text="",
                failure="boom" if index in failures else None,
            )
        )
    return TrajectoryGroup(Task("t", "sort", PROMPT), group_id, tuple(trajectories))


def test_collated_rows_hold_prompt_then_response_aligned_with_their_log_probs():
    samples = collate_groups([group_of([[1, 2, 3], [4]], group_id=9)])
    assert samples.lengths.tolist() == [5, 3]
    assert samples.input_ids.tolist() == [11, 12, 1, 2, 3, 11, 12, 4]
    assert samples.response_mask.tolist() == [False, False, True, True, True, False, False, True]
    assert samples.rollout_log_probs.tolist() == [0, 0, -1, -2, -3, 0, 0, -1]
    assert samples.policy_versions.tolist() == [-1, -1, 3, 3, 3, -1, -1, 3]
    assert samples.response_lengths.tolist() == [3, 1]
    assert samples.group_ids.tolist() == [9, 9] and samples.domains.tolist() == ["sort", "sort"]


def test_failed_and_padding_rows_train_nothing():
    samples = collate_groups([group_of([[1, 2], [3]], failures=(0,))])
    assert samples.response_lengths.tolist() == [0, 1]
    assert np.isnan(samples.rewards[0]) and samples.rewards[1] == 1
    samples = collate_groups([group_of([[1, 2, 3], [4]])])
    extra = padding_rows(samples, 2)
    assert extra.input_ids.tolist() == [11, 12, 4] * 2
    assert not extra.response_mask.any() and np.isnan(extra.rewards).all() and (extra.group_ids == -1).all()
    assert len(SampleBatch.concatenate([samples, extra])) == 4
    samples = collate_groups([group_of([[1]])])
    with pytest.raises(ValueError, match="TrainBatch.advantages has 2 entries for 3 tokens"):
        TrainBatch(samples, np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="log_probs"):
        Generation(np.zeros(2, np.int32), np.zeros(1, np.float32), np.zeros(2, np.int32), "stop")
    with pytest.raises(ValueError, match="top_p"):
        SamplingParams(4, top_p=0.0)
    lengths = np.array([3, 2, 4], np.int32)
    assert token_indices(lengths, np.array([2, 0])).tolist() == [5, 6, 7, 8, 0, 1, 2]
    assert token_indices(lengths, np.array([], np.int64)).tolist() == []
    assert sum_rows(np.arange(9.0), lengths).tolist() == [3, 7, 26]


rows_of_tokens = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(max_examples=50)
@given(rows_of_tokens, st.data(), st.integers(1, 8))
def test_select_pad_and_unpad_agree_with_plain_lists(responses: list[list[int]], data: st.DataObject, round_to: int):
    samples = collate_groups([group_of(responses)])
    order = np.array(data.draw(st.permutations(range(len(responses)))), np.int64)
    chosen = order[: data.draw(st.integers(1, len(order)))]
    expected = [[11, 12, *responses[i]] for i in chosen]

    picked = samples.select(chosen)
    assert np.split(picked.input_ids, np.cumsum(picked.lengths)[:-1])[0].tolist() == expected[0]
    assert picked.input_ids.tolist() == [t for row in expected for t in row]

    batch = pad(samples, chosen, round_to)
    width = batch.input_ids.shape[1]
    assert width % round_to == 0 and width - max(map(len, expected)) < round_to
    assert batch.input_ids.tolist() == [row + [0] * (width - len(row)) for row in expected]
    assert batch.rollout_log_probs is not None
    assert unpad(batch.rollout_log_probs, samples.lengths[chosen]).tolist() == picked.rollout_log_probs.tolist()


@settings(max_examples=50)
@given(st.integers(1, 5), st.data())
def test_balanced_parts_have_equal_counts_and_hold_every_row_once(num_parts: int, data: st.DataObject):
    room = data.draw(st.integers(0, 5))
    size = num_parts * room
    lengths = np.array(data.draw(st.lists(st.integers(1, 50), min_size=size, max_size=size)), np.int64)
    parts = balance(lengths, num_parts)
    assert [len(p) for p in parts] == [room] * num_parts
    assert sorted(int(i) for p in parts for i in p) == list(range(size))


def test_parts_are_balanced_by_work_and_keep_rows_together() -> None:
    lengths = np.array([9, 1, 5, 5, 7, 3])
    parts = balance(lengths, 2)
    assert [p.tolist() for p in parts] == [[0, 3, 1], [4, 2, 5]] and [lengths[p].sum() for p in parts] == [15, 15]
    with pytest.raises(ValueError, match="6 rows do not divide into 4 parts"):
        balance(lengths, 4)
    lengths = np.array([9, 1, 5, 5, 7, 3])
    assert [p.tolist() for p in packs(lengths, np.arange(6), 16)] == [[0, 3, 1], [4, 2, 5]]
    assert [p.tolist() for p in packs(np.array([6, 4, 4, 3, 3]), np.arange(5), 10)] == [[0, 1], [2, 3, 4]]
    assert [len(p) for p in packs(lengths, np.arange(6), 100, at_least=3)] == [2, 2, 2]
    assert [p.tolist() for p in packs(lengths, np.arange(6), 4)] == [[0], [4], [2], [3], [5, 1]]
    # Attention costs the square: beside a row of 24 576 tokens there is one short row, not two or three.
    lengths = np.array([24_576, *[8_192] * 6])
    assert work(lengths) == pytest.approx([49_152, *[10_922.67] * 6], abs=0.01)
    assert [sorted(p.tolist()) for p in packs(lengths, np.arange(7), 65_536)] == [[0, 6], [1, 2, 3, 4, 5]]
    lengths, own = np.array([4, 1, 2, 3, 9, 8, 7, 6]), np.array([4, 1, 2, 3, 8, 8, 7, 6])
    order, groups = np.arange(8), np.arange(8) // 4
    got, want = groups_by_rank(lengths, own, groups, order, 2, 2), rows_by_rank(lengths, order, 2, 2)
    assert [part.tobytes() for part in got] == [part.tobytes() for part in want]
    assert [list(part) for part in parts_in_order(6, 2, 2)] == [[0, 1, 2, 3], [4, 5]]
    assert [list(part) for part in parts_in_order(5, 1, 2)] == [[0, 1, 2], [3, 4]]
    assert [list(part) for part in parts_in_order(2, 2, 3)] == [[0, 1]]


@settings(max_examples=50)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 100), st.integers(1, 8))
def test_micro_batches_hold_every_row_once_within_their_limit(lengths: list[int], limit: int, round_to: int):
    array, rows = np.array(lengths), np.arange(len(lengths))
    for batches in (micro_batches_by_count(array, rows, limit), micro_batches_by_tokens(array, rows, limit, round_to)):
        assert sorted(int(i) for b in batches for i in b) == list(range(len(lengths)))
    for batch in micro_batches_by_tokens(array, rows, limit, round_to):
        width = -(-array[batch].max() // round_to) * round_to
        assert len(batch) == 1 or len(batch) * width <= limit


@settings(max_examples=100)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 100), st.integers(1, 8))
def test_packs_hold_every_row_once_within_their_limit(lengths: list[int], limit: int, at_least: int):
    array, rows = np.array(lengths), np.arange(len(lengths))[::-1]
    made = packs(array, rows, limit, at_least)
    assert sorted(int(i) for pack in made for i in pack) == list(range(len(lengths)))
    assert all(len(pack) == 1 or array[pack].sum() <= limit for pack in made if array.max() <= limit)
    assert len(made) >= min(at_least, len(lengths))
    assert all(len(pack) for pack in made)


def test_ranks_share_every_update_of_the_given_order():
    lengths, order = np.array([4, 1, 2, 3, 9, 8, 7, 6]), np.array([0, 1, 2, 3, 7, 6, 5, 4])
    ranks = rows_by_rank(lengths, order, num_updates=2, num_ranks=2)
    assert set(ranks[0][:2].tolist()) | set(ranks[1][:2].tolist()) == {0, 1, 2, 3}
    assert [int(lengths[r[:2]].sum()) for r in ranks] == [5, 5] and [int(lengths[r[2:]].sum()) for r in ranks] == [
        15,
        15,
    ]
    with pytest.raises(ValueError, match="8 rows do not divide into 3 updates on 2 ranks"):
        rows_by_rank(lengths, order, 3, 2)


def test_rows_of_a_group_stay_on_one_rank_where_they_are_a_tree() -> None:
    """Prompts of 90 and answers of 10: groups of 4, 2 and 2, in one update of 8 rows on 2 ranks."""
    groups = np.array([0, 1, 0, 2, 0, 1, 0, 2])
    lengths, own = np.full(8, 100), np.full(8, 10)
    ranks = groups_by_rank(lengths, own, groups, np.arange(8), 1, 2)
    assert sorted(sorted(groups[rank].tolist()) for rank in ranks) == [[0, 0, 0, 0], [1, 1, 2, 2]]
    two = groups_by_rank(lengths, own, groups, np.arange(8), 2, 2)
    assert [sorted(rank[:2]) for rank in two] == [[0, 2], [1, 3]] and all(sorted(rank[2:])[0] >= 4 for rank in two)
    three = groups_by_rank(lengths[:6], own[:6], np.zeros(6, int), np.arange(6), 1, 3)
    assert [len(rank) for rank in three] == [2, 2, 2], "a group that fits nowhere is cut"


@pytest.mark.parametrize("seed", range(10))
def test_groups_leave_ranks_as_even_as_rows_allow(seed: int) -> None:
    """Equally many rows of every update, each row once; groups of equal size are whole."""
    random = np.random.default_rng(seed)
    groups = np.repeat(np.arange(16), 8)
    own = random.integers(10, 200, len(groups))
    lengths = own + random.integers(300, 900, 16)[groups]
    order = random.permutation(len(groups)) if seed % 2 else np.arange(len(groups))
    ranks = groups_by_rank(lengths, own, groups, order, 2, 4)
    assert sorted(np.concatenate(ranks).tolist()) == list(range(len(groups))) and {len(r) for r in ranks} == {32}
    for update, rows in enumerate(np.split(order, 2)):
        assert {row for rank in ranks for row in rank[16 * update : 16 * update + 16]} == set(rows.tolist())
    if seed % 2 == 0:
        assert all(len(set(groups[rank])) == 4 for rank in ranks)


def test_difficulty_comes_from_the_data_where_they_hold_a_number() -> None:
    sizes_and_columns = ((2, {"difficulty": 0.25}), (1, {"difficulty": "hard"}), (1, {}))
    groups = [
        replace(group_of([[1]] * size, i), task=Task("t", "sort", PROMPT, payload=columns))
        for i, (size, columns) in enumerate(sizes_and_columns)
    ]
    np.testing.assert_array_equal(row_meta(groups).difficulty, [0.25, 0.25, np.nan, np.nan])
    assert row_meta(groups[2:]).difficulty is None


def row_of(response_mask: list[bool], token_rewards: list[float] | None = None) -> LocalRow:
    mask = np.array(response_mask)
    return LocalRow(
        input_ids=np.arange(len(mask), dtype=np.int32),
        response_mask=mask,
        log_probs=np.where(mask, -1.0, 0.0).astype(np.float32),
        policy_versions=np.where(mask, 2, -1).astype(np.int32),
        token_rewards=None if token_rewards is None else np.array(token_rewards, np.float32),
    )


def test_turns_keep_the_rewards_of_their_tokens_or_the_last_has_all() -> None:
    rows = sampled_rows([row_of([False, True, True], [0, 0.5, 1]), row_of([False, True])])
    assert [row["token_rewards"].tolist() for row in split_rows(rows)] == [[0, 0.5, 1], [0, 0]]
    group = group_of([[1], [2]])
    first, other = group.trajectories
    first = replace(first, turn_rewards=np.array([1.0]))
    other = replace(other, reward=2.0, content=row_of([False, True, False, True, False, True]))
    meta = row_meta([replace(group, trajectories=(first, other))])
    assert meta.num_turns is not None and meta.num_turns.tolist() == [1, 3]
    assert meta.turn_rewards is not None and meta.turn_rewards.tolist() == [1, 0, 0, 2]


def test_rows_keep_the_targets_of_their_own_tokens() -> None:
    """Rows of 2, 1 and 3 response tokens; a micro batch of the last and the first of them."""
    mask = np.array([0, 1, 1, 0, 1, 0, 1, 1, 1], bool)
    rows = TaughtRows(
        lengths=np.array([3, 2, 4], np.int32),
        input_ids=np.arange(9, dtype=np.int32),
        response_mask=mask,
        loss_weights=np.ones(3, np.float32),
        teacher_targets=np.arange(6, dtype=np.float32)[:, None],
    )
    micro = pad(rows, np.array([2, 0]))
    assert micro.teacher_targets is not None and micro.teacher_targets[:, 0].tolist() == [3, 4, 5, 0, 1]


def test_failures_from_the_same_lines_are_one_cause_with_its_first_text_and_task() -> None:
    place = "\n  /a/mine.py:3 in f: g()"
    texts = (f"KeyError: 'a 1'{place}", None, f"KeyError: 'b'{place}", f"TypeError: 'b'{place}", "hung")
    groups = []
    for number in (7, 8):
        made = replace(group_of([[1]] * len(texts), number), task=Task(str(number), "sort", PROMPT))
        rows = [replace(row, failure=text) for row, text in zip(made.trajectories, texts, strict=True)]
        groups.append(replace(made, trajectories=tuple(rows)))
    found = causes_of(groups)
    assert [(cause.text, cause.task_id, cause.count) for cause in found] == [
        (f"KeyError: 'a 1'{place}", "7", 4), (f"TypeError: 'b'{place}", "7", 2), ("hung", "7", 2),
    ]  # fmt: skip
    assert str(found[0]) == "  4 x KeyError: 'a 1'\n      /a/mine.py:3 in f: g()\n      first for 7"
