"""Causes of failed attempts."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from roll.types.rollout import TrajectoryGroup

_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


def cause_key(text: str) -> tuple[str, str]:
    """Key of failures from the same lines of code, whose messages differ in numbers and quoted words only."""
    message, _, place = text.partition("\n")
    return _VARIES.sub("0", message), place


@dataclass(frozen=True)
class FailureCause:
    """A cause, with the text and the task of the first attempt that failed for it."""

    text: str
    task_id: str
    count: int = 0

    def __str__(self) -> str:
        text = self.text.replace("\n", "\n    ")
        return f"  {self.count} x {text}\n      first for {self.task_id}"


def causes_of(groups: Iterable[TrajectoryGroup]) -> list[FailureCause]:
    causes: dict[tuple[str, str], FailureCause] = {}
    for group in groups:
        for attempt in group.attempts:
            if attempt.failure is not None:
                key = cause_key(attempt.failure)
                cause = causes.get(key) or FailureCause(attempt.failure, group.task.task_id)
                causes[key] = replace(cause, count=cause.count + 1)
    return sorted(causes.values(), key=lambda cause: -cause.count)
