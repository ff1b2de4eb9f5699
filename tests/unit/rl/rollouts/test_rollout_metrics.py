"""Metrics of a step's rollouts against a batch counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from roll.distributed.scheduler.rollout_core import GroupBacklog, StepGroups
from roll.rl.metrics import rollout_metrics
from roll.types.rollout import FinishReason, Generation, Task, Trajectory, TrajectoryGroup

PROMPT = np.array([1, 1, 1], np.int32)


def row(length: int, reward: float, index: int, version: int = 4, reason: FinishReason = "stop", **more) -> Trajectory:
    generation = Generation(
        np.full(length, 2, np.int32), np.zeros(length, np.float32), np.full(length, version, np.int32), reason
    )
    return Trajectory.from_generation(PROMPT, generation, reward, index=index, response_text="", **more)


def group(domain: str, *rows: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(Task("t", domain, PROMPT), 0, rows)


def test_lengths_ends_versions_and_rewards_are_those_counted_by_hand() -> None:
    groups = [
        group("sums", row(2, 1.0, 0, metrics={"format": 1.0}), row(4, 0.5, 1, version=2, reason="length")),
        group("words", row(6, 0.25, 0, metrics={"format": 0.0}), row(4, 0.0, 1, failure="timeout")),
    ]
    metrics = rollout_metrics(StepGroups(groups, []), groups, step=5)
    assert metrics == pytest.approx(
        {
            "rollout/failed_fraction": 1 / 4,
            "rollout/response_length_mean": 4.0,
            "rollout/response_length_max": 6.0,
            "rollout/length_bias": 4.0 / 4.0,  # of 2, 4 and 6, and one that was cut at 4
            "rollout/truncated_fraction": 1 / 4,
            "rollout/prompt_length_mean": 3.0,
            "rollout/num_tokens": 2 + 4 + 6 + 4 + 4 * 3,
            "rollout/staleness_mean": (2 + 6 + 4) / 16 * 1 + 4 / 16 * 3,
            "rollout/staleness_max": 3.0,
            "rollout/reward_mean/sums": 0.75,
            "rollout/reward_mean/words": 0.25,
            "rollout/format_mean": 0.5,
        }
    )


def test_attempts_that_failed_are_counted_not_their_rows() -> None:
    """One attempt of three turns, a row each, and one that failed."""
    groups = [group("lake", *(row(2, 1.0, 0) for _ in range(3)), row(0, 0.0, 1, failure="crash"))]
    assert rollout_metrics(StepGroups(groups, []), groups, step=5)["rollout/failed_fraction"] == 0.5


def test_an_attempt_of_several_rows_counts_once() -> None:
    """In both tags one attempt of a single turn wins and one of nine turns loses."""
    groups = [
        group(tag, row(2, 1.0, 0), *(row(2, 0.0, 1) for _ in range(9)), row(5, 0.0, 2, failure="crash"))
        for tag in ("lake", "guess")
    ]
    metrics = rollout_metrics(StepGroups(groups, []), groups, step=5)
    assert metrics["rollout/reward_mean/lake"] == metrics["rollout/reward_mean/guess"] == 0.5
    assert (metrics["rollout/response_length_mean"], metrics["rollout/response_length_max"]) == (10.0, 18.0)


def test_what_a_step_left_is_counted_and_what_was_cut_makes_the_trained_answers_shorter() -> None:
    """Of 2, 4, 6 and 12 tokens, and one that was cut at 8, the step trains on the first two."""
    taken, thrown_away = [group("sums", row(2, 1.0, 0), row(4, 0.5, 1))], group("sums", row(6, 1.0, 0))
    left = GroupBacklog(
        running=1, finished=2, cancelled=3, deferred=4, results=(thrown_away,), cut=((8, False), (12, True))
    )
    metrics = rollout_metrics(StepGroups(taken, [], left), taken, step=5)
    counts = [metrics[f"rollout/{name}_groups"] for name in ("running", "finished", "cancelled", "deferred")]
    assert counts == [1, 2, 3, 4]
    assert metrics["rollout/length_bias"] == pytest.approx(3 / 6.4)
