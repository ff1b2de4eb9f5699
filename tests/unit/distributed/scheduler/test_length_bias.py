"""The mean of answers of which some were cut, against a loop; and what dropping does to lengths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from roll.distributed.scheduler.filters import length_bias, mean_of_censored
from roll.types.rollout import Generation, Task, Trajectory, TrajectoryGroup

PROMPT = np.array([1], np.int32)


def slow_mean(lengths: np.ndarray, are_whole: np.ndarray) -> float:
    """Token by token: of the answers that are that long, the share that does not end there goes on."""
    alive, mean = 1.0, 0.0
    for token in range(1, int(lengths.max()) + 1):
        mean += alive
        ended = np.sum((lengths == token) & are_whole)
        alive *= 1 - ended / np.sum(lengths >= token)
    return mean


def group(*lengths: int, cut: tuple[int, ...] = ()) -> TrajectoryGroup:
    def row(index: int, length: int) -> Trajectory:
        answer = Generation(
            np.full(length, 5, np.int32), np.zeros(length, np.float32), np.zeros(length, np.int32), "stop"
        )
        failure = "generation was aborted" if index in cut else None
        return Trajectory.from_generation(PROMPT, answer, 1.0, index=index, response_text="", failure=failure)

    return TrajectoryGroup(Task("t", "math", PROMPT), 0, tuple(row(*numbered) for numbered in enumerate(lengths)))


def test_the_mean_is_that_of_a_loop_over_tokens_and_the_plain_one_where_nothing_was_cut() -> None:
    random = np.random.default_rng(3)
    for _ in range(200):
        lengths = random.integers(0, 30, random.integers(1, 40)) + 1
        are_whole = random.random(len(lengths)) < random.random()
        assert mean_of_censored(lengths, are_whole) == pytest.approx(slow_mean(lengths, are_whole))
        assert mean_of_censored(lengths, np.ones(len(lengths), bool)) == pytest.approx(lengths.mean())


def test_cutting_lengths_drawn_from_a_known_distribution_does_not_move_the_mean() -> None:
    """Answers of mean 100, each cut at a time of its own: the plain mean of what is seen is far below."""
    random = np.random.default_rng(4)
    lengths, limits = random.geometric(0.01, 20_000), random.geometric(0.005, 20_000)
    seen, are_whole = np.minimum(lengths, limits), lengths <= limits
    assert seen.mean() < 70
    assert mean_of_censored(seen, are_whole) == pytest.approx(100, rel=0.03)


def test_the_bias_is_one_where_all_is_trained_on_and_below_where_the_long_ones_are_missing() -> None:
    short, long = group(10, 20), group(30, 60)
    assert length_bias([short, long], [short, long]) == 1.0
    assert length_bias([short, long], [short]) == 15 / 30
    assert length_bias([group(10, 20, cut=(1,))], [group(10, 20, cut=(1,))]) == 10 / 15
    assert length_bias([short], [short], [(30, True)]) == 15 / 20
    assert length_bias([short], [short], [(5, False), (30, True)]) == 15 / 20  # 5 says nothing of the others
    assert length_bias([short], []) is None
    assert length_bias([group(0, 0)], [group(0, 0)]) is None


def test_what_redundancy_left_over_counts_with_what_was_begun() -> None:
    """Of 10, 20 and two more: one is whole after 30, one was cut after 15, so that it is as long as 20 or 30."""
    left = replace(group(10, 20), surplus=((30, True), (15, False)))
    expected = 15 / slow_mean(np.array([10, 20, 30, 15]), np.array([True, True, True, False]))
    assert length_bias([left], [left]) == pytest.approx(expected)
    assert expected == pytest.approx(15 / 21.25)
