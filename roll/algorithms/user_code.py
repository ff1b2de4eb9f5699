"""Calls of the user's own code, and a look at what it returns. What is wrong names the setting and the place."""

from collections.abc import Callable
from typing import Any

import numpy as np

from roll.errors import AlgorithmError, describe
from roll.utils.imports import line_of


def call_user(name: str, function: Callable[..., Any], *arguments: object, **keywords: object) -> Any:
    """Call the function and return its result. `name`, such as `adv_estimator: maxrl:max_rl`, begins the message when
    it raises."""
    try:
        return function(*arguments, **keywords)
    except (Exception, SystemExit) as error:
        raise AlgorithmError(f"{name} raised {describe(error)}{line_of(error, __file__)}.") from error


def one_each(name: str, what: str, returned: object, rewards: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The values that a function returned for `what` (attempts or turns) with these rewards: a finite number for each.
    float64."""
    try:
        values = np.asarray(returned)
    except (ValueError, TypeError, RuntimeError) as error:
        raise AlgorithmError(f"{name} returned a {type(returned).__name__} that is not an array: {error}.") from error
    if values.shape != rewards.shape or values.dtype.kind not in "fiub":
        got = f"an array of shape {values.shape} and {values.dtype}" if values.shape else f"{returned!r:.80}"
        raise AlgorithmError(f"{name} returned {got} for {len(rewards)} {what}. It must return one number for each.")
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(~np.isfinite(values.astype(np.float32)))  # advantages are float32
    if len(bad):
        of_group = rewards[groups == groups[bad[0]]].tolist()
        raise AlgorithmError(
            f"{name} returned {values[bad[0]]} for {len(bad)} of {len(rewards)} {what}, first for the reward "
            f"{rewards[bad[0]]:g} in a group with the rewards {of_group}. Return 0 if there is nothing to learn."
        )
    return values.astype(np.float64)
