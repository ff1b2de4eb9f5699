"""Shards put together from pieces are those that are cut from the whole batch, bit for bit."""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest

from roll.errors import RewardError
from roll.types.batch import SampleBatch, SampledRows
from roll.types.collate import RowTable, assemble, collate_groups, padding_rows, row_columns, row_meta, sampled_rows
from roll.types.media import Picture, Shown
from roll.types.rollout import Task, Trajectory, TrajectoryGroup

IMAGE = Shown(Picture("seven", 2, 3, np.full((2, 3, 3), 7, np.uint8)), 0, 1)


def trajectory(random: np.random.Generator, index: int) -> Trajectory:
    size = int(random.integers(1, 9))
    mask = random.random(size) < 0.6
    failure = "broke" if random.random() < 0.2 else None
    return Trajectory(
        input_ids=random.integers(0, 99, size).astype(np.int32),
        response_mask=mask,
        log_probs=np.where(mask, -random.random(size), 0).astype(np.float32),
        policy_versions=np.where(mask, 3, -1).astype(np.int32),
        reward=float("nan") if failure else float(random.random()),
        finish_reason="failed" if failure else "length",
        index=index,
        failure=failure,
    )


def make_groups(random: np.random.Generator, num_groups: int = 5) -> list[TrajectoryGroup]:
    return [
        TrajectoryGroup(
            Task("t", f"domain {number % 2}", np.zeros(0, np.int32)),
            number,
            tuple(trajectory(random, index) for index in range(3)),
        )
        for number in range(num_groups)
    ]


def in_pieces(
    groups: Sequence[TrajectoryGroup], sizes: Sequence[int], random: np.random.Generator
) -> tuple[RowTable, list[SampledRows]]:
    """The rows of the groups, shuffled, in pieces of these sizes."""
    rows = [row for group in groups for row in group.trajectories]
    parts = np.split(random.permutation(len(rows)), np.cumsum(sizes)[:-1])
    pieces, places = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for number, part in enumerate(parts):
        pieces[part], places[part] = number, np.arange(len(part))
    failed = np.array([row.failure is not None for row in rows])
    table = RowTable(pieces=pieces, places=places, failed=failed, **row_columns(groups))
    return table, [sampled_rows([rows[i] for i in part]) for part in parts]


def assert_equal(found: SampleBatch, wanted: SampleBatch) -> None:
    for field in fields(SampleBatch):
        a, b = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(b, np.ndarray):
            assert a.dtype == b.dtype, field.name
            np.testing.assert_array_equal(a, b, err_msg=field.name)
        else:
            assert a == b, field.name


@pytest.mark.parametrize("seed", range(5))
def test_a_shard_from_pieces_is_the_one_that_is_cut_from_the_batch(seed: int) -> None:
    random = np.random.default_rng(seed)
    groups = make_groups(random)
    table, pieces = in_pieces(groups, [4, 1, 7, 3], random)
    batch = collate_groups(groups)
    with_padding = SampleBatch.concatenate([batch, padding_rows(batch, 3)])
    order = random.permutation(18)
    for rows in (order[:9], order[9:], np.array([0, 0, 14, 16]), np.array([17])):
        used, own = table.take(rows, int(np.argmin(batch.lengths))).local_rows()
        assert_equal(assemble(own, [pieces[number] for number in used]), with_padding.select(rows))


def test_images_experts_and_rewards_of_tokens_that_some_pieces_lack_are_made_up_for() -> None:
    random = np.random.default_rng(0)
    (group,) = make_groups(random, 1)
    shown, paid, plain = group.trajectories
    rows = (
        replace(shown, media=(IMAGE,)),
        replace(paid, token_rewards=np.ones(len(paid.input_ids), np.float32)),
        replace(plain, routes=np.ones((len(plain.input_ids), 2, 3), np.int16)),
    )
    groups = [replace(group, trajectories=rows)]
    table, pieces = in_pieces(groups, [1, 1, 1], random)
    assert_equal(assemble(table, pieces), collate_groups(groups))


def test_parts_of_rewards_are_the_metrics_of_that_name() -> None:
    (group,) = make_groups(np.random.default_rng(0), 1)
    first, second, failed = group.trajectories
    rows = (
        replace(first, metrics={"right": 1.0, "short": -0.5, "other": 9.0}),
        replace(second, metrics={"short": 0.0, "right": 0.0}),
        failed.failed("no answer"),
    )
    groups = [replace(group, trajectories=rows)]
    parts = row_meta(groups, ("right", "short")).reward_parts
    np.testing.assert_array_equal(parts, [[1.0, -0.5], [0.0, 0.0], [np.nan, np.nan]])
    assert row_meta(groups).reward_parts is None
    with pytest.raises(RewardError, match="gdpo_reward_keys: no reward gave other of an attempt; there are right, sho"):
        row_meta(groups, ("other",))
