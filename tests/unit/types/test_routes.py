"""The experts of tokens on their way from an answer to a micro batch."""

from dataclasses import replace

import numpy as np

from roll.types.batch import TrainBatch
from roll.types.collate import collate_groups, pad, split_rows
from roll.types.rollout import Generation, Task, Trajectory, TrajectoryGroup, routes_of_row

LAYERS, CHOSEN = 2, 3


def routes(count: int, first: int = 0) -> np.ndarray:
    return (first + np.arange(count * LAYERS * CHOSEN, dtype=np.int16)).reshape(count, LAYERS, CHOSEN)


def answer(count: int, known: np.ndarray | None) -> Generation:
    return Generation(
        np.arange(count, dtype=np.int32), np.zeros(count, np.float32), np.zeros(count, np.int32), "stop", known
    )


def row(prompt: int, count: int, known: np.ndarray | None) -> Trajectory:
    ids = np.arange(prompt, dtype=np.int32)
    return Trajectory.from_generation(ids, answer(count, known), 1.0, index=0, response_text="")


def test_what_is_not_known_of_a_row_is_minus_one() -> None:
    known = routes(4)
    found = routes_of_row(known, 5)
    assert found is not None and found.dtype == np.int16
    assert np.array_equal(found[:4], known) and (found[4] == -1).all()
    cut = routes_of_row(known, 2)
    assert cut is not None and np.array_equal(cut, known[:2])
    assert routes_of_row(None, 3) is None


def test_they_reach_the_micro_batch_beside_their_tokens() -> None:
    """Also where another row has none; those of a pass of the trainer come before those of the rollout."""
    rows = (row(2, 3, routes(4)), row(1, 1, None), row(3, 2, routes(4, 50)))
    group = TrajectoryGroup(Task("t", "d", np.zeros(0, np.int32)), 0, tuple(rows))
    samples = collate_groups([group])
    assert samples.routes is not None and samples.routes.shape == (12, LAYERS, CHOSEN)
    batch = TrainBatch(samples=samples, advantages=np.zeros(12, np.float32))
    found = pad(batch, np.array([2, 0, 1]), round_to=4)
    assert found.routes is not None and tuple(found.routes.shape) == (3, 8, LAYERS, CHOSEN)
    assert np.array_equal(found.routes[0, :4].numpy(), routes(4, 50))
    assert np.array_equal(found.routes[1, :4].numpy(), routes(4))
    assert (found.routes[0, 4:] == -1).all() and (found.routes[2] == -1).all()
    later = pad(replace(batch, routes=samples.routes + np.int16(1)), np.array([0])).routes
    assert later is not None and np.array_equal(later[0, :4].numpy(), routes(4) + 1)
    assert [None if r["routes"] is None else len(r["routes"]) for r in split_rows(samples)] == [5, 2, 5]
