"""Answers and attempts whose tokens came with the reply, as small ones do."""

import pickle
from typing import Any

from roll.types.rollout import Generation, Trajectory


def here(generation: Generation) -> Generation:
    assert generation.is_here
    return generation


def attempt_here(attempt: Trajectory) -> Trajectory:
    assert attempt.is_here
    return attempt


def arrived(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call as another process gets them."""
    return pickle.loads(pickle.dumps(arguments))
