"""Answers and attempts whose tokens came with the reply, as small ones do."""

import pickle
from typing import Any

from roll.types.rollout import AnyGeneration, AnyTrajectory, Generation, Trajectory


def here(generation: AnyGeneration) -> Generation:
    assert isinstance(generation, Generation)
    return generation


def attempt_here(attempt: AnyTrajectory) -> Trajectory:
    assert isinstance(attempt, Trajectory)
    return attempt


def arrived(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call as another process gets them."""
    return pickle.loads(pickle.dumps(arguments))
