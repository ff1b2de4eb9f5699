"""`user_defined_rollout_loop_cls`: the user's own way from a task to a group of rewarded attempts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from roll.configs.problems import Problem
from roll.configs.sections.rollout import RolloutConfig
from roll.errors import ConfigError, TaskError
from roll.utils.imports import is_missing, resolve, split, traced

if TYPE_CHECKING:
    from roll.types.rollout import Generate, Rollouter, Task, TrajectoryGroup

    Loop = Callable[[Rollouter], Rollouter]

KEY = "user_defined_rollout_loop_cls"
_METHOD = ("task", "group_id", "step", "generate")


def loop_problems(config: RolloutConfig) -> Iterator[Problem]:
    """Check the path of the user's rollout loop as any machine can."""
    path = config.user_defined_rollout_loop_cls
    if path is None:
        return
    try:
        split(path)
    except ImportError as error:
        yield Problem(f"{KEY}: {error}.", (KEY,))
    if config.rollout_mock.replays:
        yield Problem(
            f"{KEY}: {path} would make no group: with rollout_mock.mode: mock all are recorded ones. Remove one of "
            "them.",
            (KEY, "rollout_mock"),
        )


def loop_code_problems(config: RolloutConfig) -> Iterator[Problem]:
    """Check the loop itself, whose module is imported."""
    path = config.user_defined_rollout_loop_cls
    if path is None or any(loop_problems(config)):
        return
    try:
        load_loop(path)
    except ConfigError as error:
        yield Problem(str(error), (KEY,), "place" if is_missing(path) else "run")


def load_loop(path: str | None) -> Loop | None:
    """The class behind the path, called with the pipeline's own rollouter. ConfigError where it cannot be one."""
    if path is None:
        return None
    try:
        loop = resolve(path)
    except ImportError as error:
        raise ConfigError(f"{KEY}: {error}.") from error
    form = "see docs/adding_a_rollout_loop.md"
    if not inspect.isclass(loop):
        raise ConfigError(f"{KEY}: {path} is a {type(loop).__name__}, and no class: {form}.")
    method = getattr(loop, "run_group", None)
    if not inspect.iscoroutinefunction(method):
        raise ConfigError(f"{KEY}: {path} has no method `async def run_group(self, {', '.join(_METHOD)})`: {form}.")
    for what, called, arguments in ((path, loop, (None,)), (f"{path}.run_group", method, (None, *_METHOD))):
        try:
            inspect.signature(called).bind(*arguments)
        except TypeError as error:
            raise ConfigError(
                f"{KEY}: {what} does not take the arguments of a rollout loop: {error}; {form}."
            ) from error
    return cast("Loop", loop)


@dataclass(frozen=True)
class UserRollouter:
    """A loop of the user's, and what it must keep to."""

    loop: Any
    group_size: int

    async def run_group(self, task: Task, group_id: int, step: int, generate: Generate) -> TrajectoryGroup:
        """Raises TaskError that names the class for what it raises, and for a group that is none of this size."""
        name = type(self.loop).__name__
        try:
            group = await self.loop.run_group(task, group_id, step, generate)
        except Exception as error:
            raise TaskError(f"{KEY}: {name} failed at group {group_id} ({task.task_id}): {traced(error)}") from error
        attempts = getattr(group, "attempts", None)
        if attempts is None:
            raise TaskError(
                f"{KEY}: {name}.run_group returned a {type(group).__name__}. It must return a TrajectoryGroup."
            )
        if (group.group_id, len(attempts)) != (group_id, self.group_size):
            raise TaskError(
                f"{KEY}: {name}.run_group returned group {group.group_id} with {len(attempts)} attempts. "
                f"It must return group {group_id} with {self.group_size}."
            )
        return group
