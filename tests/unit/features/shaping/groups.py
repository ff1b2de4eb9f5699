"""Groups for tests of what happens to them between rollout and training."""

from dataclasses import replace

import numpy as np

from roll.types.rollout import Generation, Task, Trajectory, TrajectoryGroup

PROMPT = np.array([1, 1, 1], np.int32)


def attempt(index: int, reward: float | None, length: int = 2, **metrics: float) -> Trajectory:
    """None failed."""
    answer = Generation(np.full(length, 5, np.int32), np.zeros(length, np.float32), np.zeros(length, np.int32), "stop")
    failure = "crash" if reward is None else None
    return Trajectory.from_generation(
        PROMPT, answer, reward or 0.0, index=index, response_text="", metrics=metrics, failure=failure
    )


def group(group_id: int, *rewards: float | None, domain: str = "math", first_length: int = 2) -> TrajectoryGroup:
    """Answer i has `first_length` + i tokens."""
    rows = [attempt(i, reward, first_length + i, score=float(i)) for i, reward in enumerate(rewards)]
    return TrajectoryGroup(Task(str(group_id), domain, PROMPT), group_id, tuple(rows))


def of_two_rows(made: TrajectoryGroup) -> TrajectoryGroup:
    """Every attempt as two rows, as turns are."""
    rows = [replace(t, turn=turn) for t in made.trajectories for turn in range(2)]  # type: ignore[type-var]
    return replace(made, trajectories=tuple(rows))
