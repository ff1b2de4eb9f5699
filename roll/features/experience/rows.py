"""A group on its way from who sampled it to who trains on it, and its form in files. Nothing is ever pickled."""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from zipfile import BadZipFile

import numpy as np

from roll.errors import ConfigError, StorageError
from roll.types.group_codec import Header, RecordedGroup, decode, encode, joined
from roll.types.media import PictureSource
from roll.types.rollout import Task, TrajectoryGroup

# What a task carries through a buffer: whole, in JSON's own types, or refused before anything is sampled.


def check_tasks(tasks: Iterable[Task]) -> None:
    """Raises ConfigError for the first that a buffer could not give back as it is."""
    for task in tasks:
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
        **({"pictures": [asdict(source) for source in task.pictures]} if task.pictures else {}),
    }


def _unfit_field(task: Task) -> str | None:
    spoken = ((f"messages[{i}]", dict(message)) for i, message in enumerate(task.messages))
    for name, value in (*task.payload.items(), *spoken):
        if (what := _unfit(value)) is not None:
            return f"{name} of {task.task_id} holds {what}, which experience cannot store"
    return None


def _unfit(value: Any) -> str | None:
    """Name the part of a value for which JSON has no type; None if there is none."""
    if value is None or isinstance(value, str | bool | float | int):
        return None
    if isinstance(value, list):
        return next((unfit for each in value if (unfit := _unfit(each)) is not None), None)
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
        pictures=tuple(PictureSource(**source) for source in fields.get("pictures", ())),
    )


_REPORTED = "told"


@dataclass(frozen=True)
class Experience:
    """A group with its tokens. `step`: of the explorer, for which it was sampled, from 0; `is_kept`: False where a
    filter dropped it."""

    step: int
    group: TrajectoryGroup
    is_kept: bool = True

    @property
    def number(self) -> int:
        return self.group.group_id

    @property
    def oldest_version(self) -> int:
        """Oldest version of the weights that sampled a token; -1 if nothing was sampled."""
        versions = [row.facts.oldest_version for row in self.group.trajectories]
        return min((version for version in versions if version >= 0), default=-1)


ENDING = "npz"


def pack(experience: Experience) -> bytes:
    """A group as numpy's archive: all of it, so that it is read whole or not at all."""
    pieces, headers = encode([_recorded(experience)])
    described = json.dumps({"about": _about(experience), "headers": headers})
    arrays: dict[str, Any] = {**joined(pieces), _REPORTED: np.frombuffer(described.encode("ascii"), np.uint8)}
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def unpack(content: bytes) -> Experience:
    """Raises an exception, of whatever kind, for what is damaged: never another group than was packed."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except BadZipFile as error:
        raise ValueError(str(error)) from error
    described = json.loads(arrays.pop(_REPORTED).tobytes())
    return _experience(described["about"], arrays, described["headers"])


def _recorded(experience: Experience) -> RecordedGroup:
    group = experience.group
    return RecordedGroup(group.group_id, group.task.task_id, group.trajectories, group.surplus, group.greedy_reward)


def _about(experience: Experience) -> dict[str, Any]:
    return {"step": experience.step, "is_kept": experience.is_kept, "task": fields_of(experience.group.task)}


def _experience(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray], headers: Sequence[Header]) -> Experience:
    (recorded,) = decode(arrays, headers)
    task, rows = task_of(about["task"]), recorded.trajectories
    group = TrajectoryGroup(task, recorded.group_id, rows, recorded.surplus, recorded.greedy_reward)
    return Experience(about["step"], group, about["is_kept"])
