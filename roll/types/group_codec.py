"""Groups of trajectories as flat arrays and plain values, for files: tokens, log-probs, versions, texts, rewards.
Nothing is ever pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from roll.types.rollout import Trajectory, TrajectoryBase, Turn
from roll.utils.plain import plain_fields

ARRAYS_FILE, HEADERS_FILE = "finished.safetensors", "finished.jsonl"

_PER_TOKEN = {"input_ids": np.int32, "response_mask": np.bool_, "log_probs": np.float32}
_SOMETIMES = ("token_rewards", "turn_rewards")  # float32, of some rows; their headers say how many
_TOLD = [field.name for field in fields(TrajectoryBase) if field.name not in ("turn_rewards", "extra", "metrics")]

Arrays = dict[str, np.ndarray]
Header = dict[str, Any]


@dataclass(frozen=True)
class RecordedGroup:
    """The attempts of a group, and the task that they are of. What they show beside their tokens is not in it: that of
    the task."""

    group_id: int
    task_id: str
    trajectories: tuple[Trajectory, ...]
    surplus: tuple[tuple[int, bool], ...] = ()


def encode(groups: Sequence[RecordedGroup]) -> tuple[Arrays, list[Header]]:
    """Arrays over all rows, and a header for each row, as JSON values. Versions are runs: which, of how many tokens.

    Example: a row with tokens of the versions [-1 -1 3 3 3] adds [-1 3] to version_values, [2 3] to version_lengths.
    """
    rows = [(group, row) for group in groups for row in group.trajectories]
    arrays: Arrays = {"lengths": np.array([len(row.input_ids) for _, row in rows], np.int64)}
    arrays |= {name: _flat([getattr(row, name) for _, row in rows], dtype) for name, dtype in _PER_TOKEN.items()}
    values, lengths = zip(*(_runs(row.policy_versions) for _, row in rows), strict=True) if rows else ((), ())
    arrays |= {"version_values": _flat(values, np.int32), "version_lengths": _flat(lengths, np.int32)}
    for name in _SOMETIMES:
        arrays[name] = _flat([found for _, row in rows if (found := getattr(row, name)) is not None], np.float32)
    texts = [row.response_text.encode("utf-8", "surrogatepass") for _, row in rows]
    arrays["texts"] = np.frombuffer(b"".join(texts), np.uint8)
    return arrays, [_header(group, row, len(text)) for (group, row), text in zip(rows, texts, strict=True)]


def decode(arrays: Mapping[str, np.ndarray], headers: Sequence[Header]) -> list[RecordedGroup]:
    """What `encode` was given."""
    ends = np.cumsum(arrays["lengths"])
    versions = np.repeat(arrays["version_values"], arrays["version_lengths"])
    split: dict[str, Any] = {name: _split(arrays[name], ends) for name in _PER_TOKEN} | {
        "policy_versions": _split(versions, ends)
    }
    some: dict[str, Any] = {name: _parts(arrays[name], [header[name] for header in headers]) for name in _SOMETIMES}
    texts = _parts(arrays["texts"], [header["text"] for header in headers])
    rows: dict[int, list[Trajectory]] = {}
    first: dict[int, Header] = {}
    for i, header in enumerate(headers):
        text = texts[i]
        assert text is not None
        rows.setdefault(header["group"], []).append(
            Trajectory(
                **{name: header[name] for name in (*_TOLD, "metrics", "extra")},
                **{name: parts[i] for name, parts in (split | some).items()},
                response_text=text.tobytes().decode("utf-8", "surrogatepass"),
                turns=tuple(Turn(**turn) for turn in header["turns"]),
            )
        )
        first.setdefault(header["group"], header)
    return [
        RecordedGroup(
            group, first[group]["task"], tuple(found), tuple((count, whole) for count, whole in first[group]["surplus"])
        )
        for group, found in rows.items()
    ]


def save_groups(directory: Path, groups: Sequence[RecordedGroup]) -> None:
    """Two files in a directory that is made."""
    arrays, headers = encode(groups)
    directory.mkdir(parents=True)
    save_file(arrays, directory / ARRAYS_FILE)
    with (directory / HEADERS_FILE).open("w", encoding="ascii") as stream:
        stream.writelines(json.dumps(header) + "\n" for header in headers)


def load_groups(directory: Path) -> list[RecordedGroup]:
    """What is saved there; nothing if there is no such directory."""
    if not directory.is_dir():
        return []
    with (directory / HEADERS_FILE).open(encoding="ascii") as stream:
        headers = [json.loads(line) for line in stream]
    return decode(load_file(directory / ARRAYS_FILE), headers)


def _header(group: RecordedGroup, row: Trajectory, num_bytes: int) -> Header:
    return {
        "group": group.group_id,
        "task": group.task_id,
        "surplus": group.surplus,
        "text": num_bytes,
        **{name: None if (found := getattr(row, name)) is None else len(found) for name in _SOMETIMES},
        **{name: getattr(row, name) for name in _TOLD},
        "metrics": {name: float(value) for name, value in row.metrics.items()},
        "extra": plain_fields(row.extra),
        "turns": [{**asdict(turn), "metrics": dict(turn.metrics)} for turn in row.turns],
    }


def _flat(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    starts = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1]) if len(values) else np.zeros(0, int)
    return values[starts], np.diff(starts, append=len(values))


def _split(values: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    return np.split(values, ends[:-1])


def _parts(values: np.ndarray, counts: Sequence[int | None]) -> list[np.ndarray | None]:
    """The next `count` values for each; None where the count is."""
    split = iter(np.split(values, np.cumsum([count for count in counts if count is not None])[:-1]))
    return [None if count is None else next(split) for count in counts]
