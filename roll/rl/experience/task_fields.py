"""What a task carries through a buffer: whole, in JSON's own types, or refused before anything is sampled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from roll.errors import ConfigError, StorageError
from roll.types.rollout import Task

_MAX_INTEGER_BITS = 4_096  # what has more digits Python does not read back


def check_tasks(tasks: Iterable[Task]) -> None:
    """Raises ConfigError for the first that a buffer could not give back as it is."""
    for task in tasks:
        if task.media:
            raise ConfigError(f"mode: {task.task_id} contains pictures, which experience cannot store. Use mode: both.")
        if (reason := _unfit_field(task)) is not None:
            raise ConfigError(f"mode: {reason}. Write it as a text or a number in the data, or use mode: both.")


def fields_of(task: Task) -> dict[str, Any]:
    """Fields of a task as JSON values. Raises StorageError for a field that would come back changed."""
    if (reason := _unfit_field(task)) is not None:
        raise StorageError(f"{reason}. Use mode: both")
    return {
        "task_id": task.task_id,
        "domain": task.domain,
        "prompt_ids": task.prompt_ids.tolist(),
        "prompt_text": task.prompt_text,
        "question": task.question,
        "payload": dict(task.payload),
        "messages": [dict(message) for message in task.messages],
        "tools": [dict(tool) for tool in task.tools],
    }


def _unfit_field(task: Task) -> str | None:
    spoken = ((f"messages[{i}]", dict(message)) for i, message in enumerate(task.messages))
    for name, value in (*task.payload.items(), *spoken):
        if (what := _unfit(value)) is not None:
            return f"{name} of {task.task_id} holds {what}, which experience cannot store"
    return None


def _unfit(value: Any) -> str | None:
    """What in a value JSON has no type of its own for, in words."""
    if value is None or isinstance(value, str | bool | float):
        return None
    if isinstance(value, int):
        return None if value.bit_length() <= _MAX_INTEGER_BITS else f"a number of {value.bit_length()} bits"
    if isinstance(value, list):
        return next((found for each in value if (found := _unfit(each)) is not None), None)
    if isinstance(value, dict):
        if (key := next((key for key in value if not isinstance(key, str)), None)) is not None:
            return f"a mapping whose keys are of type {type(key).__name__}"
        return _unfit(list(value.values()))
    return f"a value of type {type(value).__name__}"


def task_of(fields: Mapping[str, Any]) -> Task:
    return Task(
        task_id=fields["task_id"],
        domain=fields["domain"],
        prompt_ids=np.array(fields["prompt_ids"], np.int32),
        prompt_text=fields["prompt_text"],
        payload=fields["payload"],
        messages=tuple(fields["messages"]),
        question=fields["question"],
        tools=tuple(fields.get("tools", ())),
    )
