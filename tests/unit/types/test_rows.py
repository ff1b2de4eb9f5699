"""Rows and their columns: what is checked when they are made, and rows that no rollout made."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from roll.algorithms.loss import SupervisedLoss
from roll.types.batch import LossScale, MicroBatch, RowMeta, Rows, SampleBatch, TokenOutputs, TrainBatch
from roll.types.collate import collate_groups, pad, row_meta
from roll.types.columns import columns
from roll.types.media import Picture, Shown
from roll.types.rollout import Generation, Task, Trajectory, TrajectoryGroup
from tests.unit.algorithms.rows import random_samples, random_train_batch

RED = Shown(Picture("red", 2, 3, np.full((2, 3, 3), (255, 0, 0), np.uint8)), 0, 1)
BLUE = Shown(Picture("blue", 4, 1, np.full((4, 1, 3), (0, 0, 255), np.uint8)), 1, 1)


def plain_rows(**changes: Any) -> Rows:
    given = {
        "lengths": np.array([3, 2], np.int32),
        "input_ids": np.array([5, 6, 7, 8, 9], np.int32),
        "response_mask": np.array([False, True, True, False, True]),
        "loss_weights": np.array([1, 0.5], np.float32),
    }
    return Rows(**(given | changes))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("input_ids", np.arange(5), "Rows.input_ids is int64 [5], not int32 [5]"),
        ("input_ids", np.arange(4, dtype=np.int32), "Rows.input_ids has 4 entries for 5 tokens"),
        ("response_mask", np.ones((5, 1), bool), "Rows.response_mask is bool [5, 1], not bool [5]"),
        ("loss_weights", np.ones(2), "Rows.loss_weights is float64 [2], not float32 [2]"),
        ("loss_weights", [1.0, 1.0], "Rows.loss_weights is a list, not a numpy array of float32"),
        ("loss_weights", torch.ones(2), "Rows.loss_weights is a Tensor, not a numpy array of float32"),
        ("media", ((),), "Rows.media has 1 entries for 2 rows"),
    ],
)
def test_a_column_of_another_length_dtype_or_shape_is_refused_by_name(name: str, values: Any, message: str) -> None:
    with pytest.raises(ValueError) as refused:
        plain_rows(**{name: values})
    assert str(refused.value) == message


@pytest.mark.parametrize("made", [SampleBatch, TrainBatch, RowMeta, Trajectory, Generation])
def test_every_column_of_every_class_is_checked(made: type) -> None:
    samples = random_samples(np.random.default_rng(0), [2, 3])
    token = np.zeros(1, np.int32)
    generation = Generation(token, np.zeros(1, np.float32), token, "stop")
    trajectory = Trajectory.from_generation(token, generation, 1.0, index=0, response_text="")
    meta = row_meta([TrajectoryGroup(Task("t", "d", token), 0, (trajectory,))])
    trained = random_train_batch(np.random.default_rng(0), samples)
    good = {type(value): value for value in (samples, trained, meta, trajectory, generation)}[made]
    holder = type(good.content) if isinstance(good, Trajectory | Generation) else made
    assert len(columns(holder)) >= 3
    for name, column in columns(holder).items():
        if getattr(good, name) is not None:
            with pytest.raises(ValueError, match=rf"{made.__name__}\.{name} is uint64"):
                replace(good, **{name: np.zeros(len(getattr(good, name)), np.uint64)})
        assert column.unit in ("rows", "tokens", "turns")


def test_rows_without_a_rollout_are_padded_and_images_stay() -> None:
    batch = pad(plain_rows(), np.array([1, 0]))
    assert batch.input_ids.tolist() == [[8, 9, 0], [5, 6, 7]] and batch.loss_weights.tolist() == [0.5, 1]
    assert batch.rollout_log_probs is None and batch.advantages is None and batch.media is None
    outputs = TokenOutputs(log_probs=torch.full((2, 3), -0.5, requires_grad=True))
    loss, _ = SupervisedLoss()(outputs, batch, LossScale(3, 2))
    assert loss.item() == pytest.approx(0.5 * (0.5 * 1 + 1 * 2) / 3)  # row weights times tokens, over all tokens
    rows = plain_rows(media=((RED, BLUE), ()))
    assert rows.select(np.array([1, 0, 1])).media == ((), (RED, BLUE), ())
    joined = Rows.concatenate([rows, rows.select(np.array([1]))])
    assert joined.media == ((RED, BLUE), (), ()) and joined.lengths.tolist() == [3, 2, 2]
    assert pad(rows, np.array([1, 0])).media == ((), (RED, BLUE))
    with pytest.raises(ValueError, match="some batches have media and some have not"):
        Rows.concatenate([rows, plain_rows()])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("input_ids", torch.zeros(2, 3), "MicroBatch.input_ids is torch.float32, not torch.int64"),
        ("lengths", torch.tensor([[3], [2]]), r"MicroBatch.lengths is \[2, 1\], not \[2\]"),
        ("loss_weights", torch.ones(2, dtype=torch.int64), "loss_weights is torch.int64, not floating point"),
        ("advantages", torch.zeros(2, 2), r"MicroBatch.advantages is \[2, 2\], not \[2, 3\]"),
    ],
)
def test_micro_batches_check_shapes_and_dtypes(name: str, value: torch.Tensor, message: str) -> None:
    batch = pad(plain_rows(), np.arange(2))
    with pytest.raises(ValueError, match=message):
        replace(batch, **{name: value})
    assert isinstance(batch.to(torch.device("cpu")), MicroBatch)


def test_the_images_of_a_task_reach_the_rows_made_of_it() -> None:
    token = np.zeros(1, np.int32)
    generation = Generation(token, np.zeros(1, np.float32), token, "stop")
    groups = [
        TrajectoryGroup(
            Task("t", "d", token),
            0,
            (Trajectory.from_generation(token, generation, 1.0, index=0, response_text="", media=media),),
        )
        for media in ((RED,), ())
    ]
    assert collate_groups(groups).media == ((RED,), ())
    assert collate_groups(groups[1:]).media is None


@pytest.mark.parametrize(
    "media", [(replace(RED, start=3),), (RED, RED), (BLUE, RED), (replace(RED, length=0),), (replace(BLUE, length=9),)]
)
def test_pictures_stand_in_order_inside_their_rows(media: tuple[Shown, ...]) -> None:
    with pytest.raises(ValueError, match="a picture at tokens"):
        plain_rows(media=(media, ()))
