"""A group on its way from who sampled it to who trains on it, and its forms in files: numpy's archive, JSON lines,
Parquet. Nothing is ever pickled."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
import xxhash

from roll.errors import ConfigError, StorageError
from roll.types.group_codec import Arrays, Header, RecordedGroup, decode, encode, joined
from roll.types.media import PictureSource
from roll.types.rollout import Task, TrajectoryGroup

# What a task carries through a buffer: whole, in JSON's own types, or refused before anything is sampled.

_MAX_INTEGER_BITS = 4_096  # what has more digits Python does not read back


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
    if value is None or isinstance(value, str | bool | float):
        return None
    if isinstance(value, int):
        return None if value.bit_length() <= _MAX_INTEGER_BITS else f"a number of {value.bit_length()} bits"
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
_NO_NUMBERS = {"inf": "Infinity", "-inf": "-Infinity"}


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


class Form(Protocol):
    """How a group is written: all of it, so that it is read whole or not at all."""

    ending: str

    def pack(self, experience: Experience) -> bytes: ...

    def unpack(self, content: bytes) -> Experience:
        """Raises an exception, of whatever kind, for what is damaged: never another group than was packed."""
        ...


class ArchiveForm:
    """Numpy's archive: the smallest and fastest."""

    ending = "npz"

    def pack(self, experience: Experience) -> bytes:
        pieces, headers = encode([_recorded(experience)])
        described = json.dumps({"about": _about(experience), "headers": headers})
        arrays: dict[str, Any] = {**joined(pieces), _REPORTED: np.frombuffer(described.encode("ascii"), np.uint8)}
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        return stream.getvalue()

    def unpack(self, content: bytes) -> Experience:
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except BadZipFile as error:
            raise ValueError(str(error)) from error
        described = json.loads(arrays.pop(_REPORTED).tobytes())
        return _experience(described["about"], arrays, described["headers"])


class LineForm:
    """A line of JSON for each attempt, or each of its rows: `input_ids`, `response_mask`, `log_probs`,
    `policy_versions` by token, `reward`, `response_text`, `group`, `task`, `step`; `header` and `about` have the rest
    as JSON in a text, `digest` is that of all lines. Numbers that JSON does not have are null (NaN) and the texts
    "Infinity" and "-Infinity"."""

    ending = "jsonl"

    def pack(self, experience: Experience) -> bytes:
        rows = [{name: _finite(value) for name, value in row.items()} for row in _plain_rows(experience)]
        lines = (json.dumps(row, allow_nan=False) + "\n" for row in _signed(rows))
        return "".join(lines).encode("ascii")

    def unpack(self, content: bytes) -> Experience:
        return _of_plain_rows(_as_signed([json.loads(line) for line in content.decode("ascii").splitlines()]))


class ParquetForm:
    """The same columns as JSON lines have."""

    ending = "parquet"

    def pack(self, experience: Experience) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema(
            [
                *((name, pa.int64()) for name in ("group", "step")),
                *((name, pa.string()) for name in ("task", "response_text", "header", "about", "digest")),
                ("reward", pa.float64()),
                *((name, pa.list_(pa.int32())) for name in ("input_ids", "policy_versions")),
                ("response_mask", pa.list_(pa.bool_())),
                *((name, pa.list_(pa.float32())) for name in ("log_probs", "token_rewards", "turn_rewards")),
            ]
        )
        stream = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(_signed(_plain_rows(experience)), schema), stream)
        return stream.getvalue()

    def unpack(self, content: bytes) -> Experience:
        import pyarrow.parquet as pq

        return _of_plain_rows(_as_signed(pq.read_table(io.BytesIO(content)).to_pylist()))


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


def _plain_rows(experience: Experience) -> list[dict[str, Any]]:
    recorded = _recorded(experience)
    _, headers = encode([recorded])
    about = json.dumps(_about(experience))
    return [
        {
            "group": recorded.group_id,
            "step": experience.step,
            "task": _readable(recorded.task_id),
            "reward": float(row.reward) if np.isfinite(row.reward) else None,
            "response_text": _readable(row.response_text),
            "input_ids": row.input_ids.tolist(),
            "response_mask": row.response_mask.tolist(),
            "log_probs": row.log_probs.tolist(),
            "policy_versions": row.policy_versions.tolist(),
            "token_rewards": None if row.token_rewards is None else row.token_rewards.tolist(),
            "turn_rewards": None if row.turn_rewards is None else row.turn_rewards.tolist(),
            "header": json.dumps(header),
            "about": about,
        }
        for row, header in zip(recorded.trajectories, headers, strict=True)
    ]


def _of_plain_rows(rows: Sequence[Mapping[str, Any]]) -> Experience:
    """Every token is a run of versions by itself."""
    headers = [json.loads(row["header"]) for row in rows]
    texts = [row["response_text"].encode() for row in rows]
    for header, text in zip(headers, texts, strict=True):
        header["text"] = len(text)

    def column(name: str, dtype: type) -> np.ndarray:
        parts = [np.array(row[name], dtype) for row in rows if row[name] is not None]
        return np.concatenate([np.zeros(0, dtype), *parts])

    arrays: Arrays = {
        "lengths": np.array([len(row["input_ids"]) for row in rows], np.int64),
        "input_ids": column("input_ids", np.int32),
        "response_mask": column("response_mask", np.bool_),
        "log_probs": column("log_probs", np.float32),
        "version_values": column("policy_versions", np.int32),
        "token_rewards": column("token_rewards", np.float32),
        "turn_rewards": column("turn_rewards", np.float32),
        "texts": np.frombuffer(b"".join(texts), np.uint8),
    }
    arrays["version_lengths"] = np.ones(len(arrays["version_values"]), np.int32)
    return _experience(json.loads(rows[0]["about"]), arrays, headers)


def _readable(text: str) -> str:
    """Halves of characters, which UTF-8 cannot encode, become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _finite(value: Any) -> Any:
    if not isinstance(value, list) or all(map(math.isfinite, value)):
        return value
    return [one if math.isfinite(one) else _NO_NUMBERS.get(str(one)) for one in value]


def _signed(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each with the digest of all: neither form tells by itself that something was cut off or changed."""
    digest = _digest(rows)
    return [{**row, "digest": digest} for row in rows]


def _as_signed(rows: Sequence[dict[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Raises ValueError for rows that were not signed together."""
    digests = {row.pop("digest") for row in rows}
    if digests != {_digest(rows)}:
        raise ValueError("its rows do not match its digest")
    return rows


def _digest(rows: Sequence[Mapping[str, Any]]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(rows, sort_keys=True).encode("ascii"))


FORMS: Mapping[str, Form] = {form.ending: form for form in (ArchiveForm(), LineForm(), ParquetForm())}
