"""Which groups of episodes are worth training on: `group_filter_cls`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from roll.errors import EnvError, describe
from roll.types.rollout import TrajectoryGroup
from roll.utils.imports import resolve

GroupFilter = Callable[[TrajectoryGroup], bool]


class DropEqualRewards:
    """Drops groups whose episodes all earned the same: nothing can be learned from comparing them."""

    def __call__(self, group: TrajectoryGroup) -> bool:
        rewards = group.rewards[~np.isnan(group.rewards)]
        return len(rewards) < 2 or bool(rewards.max() > rewards.min())


def load_filter(path: str) -> GroupFilter:
    """The filter that `package.module:object` names; a class is made into an object. Raises ImportError, TypeError.
    Whatever the filter raises comes as EnvError."""
    found: Any = resolve(path)
    keep: Any = found() if inspect.isclass(found) else found
    if not callable(keep):
        raise TypeError(f"{path} cannot be called")

    def keeps(group: TrajectoryGroup) -> bool:
        try:
            return bool(cast(GroupFilter, keep)(group))
        except BaseException as error:
            text = f"group_filter_cls: {path} raised {describe(error)}, for the group of {group.task.task_id}"
            raise EnvError(f"{text} with the rewards {group.rewards.tolist()}.") from error

    return keeps


def filter_problems(path: str, key: str) -> list[str]:
    try:
        load_filter(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return [f"{key}: {error if isinstance(error, ImportError | TypeError) else describe(error)}."]
    return []
