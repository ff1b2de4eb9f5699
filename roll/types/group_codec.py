"""Groups of trajectories as flat arrays and plain values, for files: tokens, log-probs, versions, texts, rewards.
Nothing is ever pickled."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from roll.types.media import media_fields, media_of
from roll.types.rollout import Trajectory
from roll.types.texts import RowTexts, Turn
from roll.utils.json_values import plain_fields

_PER_TOKEN = {"input_ids": np.int32, "response_mask": np.bool_, "log_probs": np.float32}
_SOMETIMES = ("token_rewards", "turn_rewards")  # float32, of some rows; their headers say how many
_APART = ("turn_rewards", "extra", "metrics", "content")  # fields of a Trajectory that are no plain values
_BASE_FIELDS = [field.name for field in fields(Trajectory) if field.name not in _APART]

_DTYPES: Mapping[str, type] = {
    **_PER_TOKEN,
    **dict.fromkeys(_SOMETIMES, np.float32),
    "lengths": np.int64,
    "version_values": np.int32,
    "version_lengths": np.int32,
    "texts": np.uint8,
    "routes": np.int16,
}
_NAMES = {
    np.int64: "I64",
    np.int32: "I32",
    np.float32: "F32",
    np.bool_: "BOOL",
    np.uint8: "U8",
    np.int16: "I16",
}  # of safetensors

Arrays = dict[str, np.ndarray]
Pieces = dict[str, list[np.ndarray]]
Header = dict[str, Any]


@dataclass(frozen=True)
class RecordedGroup:
    """The attempts of a group, and the task that they are of. Of pictures, files hold where they are."""

    group_id: int
    task_id: str
    trajectories: tuple[Trajectory, ...]
    surplus: tuple[tuple[int, bool], ...] = ()
    greedy_reward: float | None = None


def encode(groups: Sequence[RecordedGroup]) -> tuple[Pieces, list[Header]]:
    """Arrays over all rows, each in the pieces that make it up, and a header for each row, as JSON values. Versions are
    runs: [-1 -1 3 3 3] adds [-1 3] to version_values, [2 3] to version_lengths."""
    rows = [(group, row) for group in groups for row in group.trajectories]
    pieces: Pieces = {"lengths": [np.array([len(row.input_ids) for _, row in rows], np.int64)]}
    pieces |= {name: [_as(getattr(row, name), dtype) for _, row in rows] for name, dtype in _PER_TOKEN.items()}
    runs = [_runs(row.policy_versions) for _, row in rows]
    pieces |= {"version_values": [values for values, _ in runs], "version_lengths": [lengths for _, lengths in runs]}
    for name in _SOMETIMES:
        pieces[name] = [
            _as(optional_values, np.float32) for _, row in rows if (optional_values := getattr(row, name)) is not None
        ]
    texts = [np.frombuffer(row.response_text.encode("utf-8", "surrogatepass"), np.uint8) for _, row in rows]
    pieces["routes"] = [_as(row.routes, np.int16).reshape(-1) for _, row in rows if row.routes is not None]
    headers = [_header(group, row, len(text)) for (group, row), text in zip(rows, texts, strict=True)]
    return pieces | {"texts": texts}, headers


def joined(pieces: Pieces) -> Arrays:
    return {name: np.concatenate([np.zeros(0, _DTYPES[name]), *parts]) for name, parts in pieces.items()}


def decode(arrays: Mapping[str, np.ndarray], headers: Sequence[Header]) -> list[RecordedGroup]:
    ends = np.cumsum(arrays["lengths"])
    versions = np.repeat(arrays["version_values"], arrays["version_lengths"])
    split: dict[str, Any] = {name: _split(arrays[name], ends) for name in _PER_TOKEN} | {
        "policy_versions": _split(versions, ends)
    }
    some: dict[str, Any] = {name: _parts(arrays[name], [header[name] for header in headers]) for name in _SOMETIMES}
    texts = _parts(arrays["texts"], [header["text"] for header in headers])
    routes = _routes(arrays, headers)
    rows: dict[int, list[Trajectory]] = {}
    first: dict[int, Header] = {}
    for i, header in enumerate(headers):
        text = texts[i]
        assert text is not None
        rows.setdefault(header["group"], []).append(
            Trajectory(
                **{name: header[name] for name in (*_BASE_FIELDS, "metrics", "extra") if name in header},
                **{name: parts[i] for name, parts in (split | some).items()},
                routes=routes[i],
                response_text=text.tobytes().decode("utf-8", "surrogatepass"),
                turns=tuple(Turn.of(turn) for turn in header["turns"]),
                media=media_of(header.get("media", ())),
            )
        )
        first.setdefault(header["group"], header)
    return [_of_header(first[group], tuple(attempts)) for group, attempts in rows.items()]


def _of_header(header: Header, rows: tuple[Trajectory, ...]) -> RecordedGroup:
    surplus = tuple((count, whole) for count, whole in header["surplus"])
    return RecordedGroup(header["group"], header["task"], rows, surplus, header.get("greedy_reward"))


def save_groups(directory: Path, groups: Sequence[RecordedGroup]) -> None:
    """Two files, in a directory that is made."""
    arrays, header_file = files_of(directory)
    pieces, headers = encode(groups)
    directory.mkdir(parents=True, exist_ok=True)
    _save(arrays, pieces)
    with header_file.open("w", encoding="ascii") as stream:
        stream.writelines(json.dumps(header) + "\n" for header in headers)


def load_groups(directory: Path) -> list[RecordedGroup]:
    """Load the groups that are saved in a directory; an empty list if there are no such files."""
    arrays, header_file = files_of(directory)
    if not header_file.exists():
        return []
    with header_file.open(encoding="ascii") as stream:
        headers = [json.loads(line) for line in stream]
    return decode(load_file(arrays), headers)


def files_of(directory: Path) -> tuple[Path, Path]:
    """Files of the arrays and of the headers."""
    return directory / "finished.safetensors", directory / "finished.jsonl"


def _header(group: RecordedGroup, row: Trajectory, num_bytes: int) -> Header:
    return {
        "group": group.group_id,
        "task": group.task_id,
        "surplus": group.surplus,
        "greedy_reward": group.greedy_reward,
        "text": num_bytes,
        "routes": None if row.routes is None else row.routes.shape,
        **{name: None if (values := getattr(row, name)) is None else len(values) for name in _SOMETIMES},
        **{name: _plain_number(getattr(row, name)) for name in _BASE_FIELDS},
        "metrics": {name: float(value) for name, value in row.metrics.items()},
        "extra": plain_fields(row.extra),
        "turns": [_turn(turn) for turn in row.turns],
        **({"media": media_fields(row.media)} if row.media else {}),
    }


def _routes(arrays: Mapping[str, np.ndarray], headers: Sequence[Header]) -> list[np.ndarray | None]:
    """Routes of each row; None for rows without, such as those of older files."""
    shapes = [header.get("routes") for header in headers]
    parts = _parts(arrays.get("routes", np.zeros(0, np.int16)), [shape and math.prod(shape) for shape in shapes])
    return [None if part is None else part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _turn(turn: Turn) -> Header:
    metrics = {name: float(value) for name, value in turn.metrics.items()}
    return {**asdict(turn), "reward": float(turn.reward), "metrics": metrics}


def _plain_number(value: object) -> object:
    """Rewards and indices that a user's own loop gives may be numpy's."""
    return value.item() if isinstance(value, np.generic) else value


def _as(values: np.ndarray, dtype: type) -> np.ndarray:
    return np.ascontiguousarray(values, dtype)


def _runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    starts = np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1]) if len(values) else np.zeros(0, int)
    return _as(values[starts], np.int32), np.diff(starts, append=len(values)).astype(np.int32)


def _save(path: Path, pieces: Pieces) -> None:
    """Writes safetensors, piece by piece. The library's own writer needs each tensor in one piece, and copies it twice
    more."""
    table, end = {}, 0
    for name, parts in pieces.items():
        begin, end = end, end + sum(part.nbytes for part in parts)
        shape = [(end - begin) // np.dtype(_DTYPES[name]).itemsize]
        table[name] = {"dtype": _NAMES[_DTYPES[name]], "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(table).encode("ascii")
    header += b" " * (-len(header) % 8)
    with path.open("wb", buffering=1 << 20) as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        for parts in pieces.values():
            for part in parts:
                stream.write(part.data)


def _split(values: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    return np.split(values, ends[:-1])


def _parts(values: np.ndarray, counts: Sequence[int | None]) -> list[np.ndarray | None]:
    """The next `count` values for each; None where the count is."""
    split = iter(np.split(values, np.cumsum([count for count in counts if count is not None])[:-1]))
    return [None if count is None else next(split) for count in counts]


# Groups of a step in one file, whole. Numpy's archive without pickles.

_HEADERS, _GROUPS = "headers", "groups"


def write_groups(path: Path, groups: Sequence[RecordedGroup]) -> None:
    """Writes groups to a file, under another name until it is complete; its folder is made."""
    pieces, headers = encode(groups)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    encoded = np.frombuffer(json.dumps(headers).encode("ascii"), np.uint8)
    numbers = np.array([group.group_id for group in groups], np.int64)
    with unfinished.open("wb") as stream:
        np.savez(stream, **joined(pieces), **{_GROUPS: numbers, _HEADERS: encoded})
    os.replace(unfinished, path)


def group_ids(path: Path) -> list[int]:
    """The numbers of the groups in a file, read without the rest."""
    with np.load(path, allow_pickle=False) as archive:
        return archive[_GROUPS].tolist()


def read_groups(path: Path) -> list[RecordedGroup]:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return decode(arrays, json.loads(arrays[_HEADERS].tobytes()))


# What is to be read of many rows, stored so that a reader of one row touches no other.


@dataclass(frozen=True)
class TextTable:
    """The texts of rows as UTF-8: of row i the parts 2 i (`response_text`) and 2 i + 1 (`raw_text`)."""

    data: np.ndarray  # uint8
    ends: np.ndarray  # int64, of the parts
    turns: tuple[tuple[Turn, ...], ...] | None = None  # of each row

    @staticmethod
    def of(rows: Sequence[RowTexts]) -> TextTable:
        parts = [_encoded(text) for row in rows for text in (row.response_text, row.raw_text)]
        turns = tuple(row.turns for row in rows) if any(row.turns for row in rows) else None
        return TextTable(np.frombuffer(b"".join(parts), np.uint8), np.cumsum([len(part) for part in parts]), turns)

    def __len__(self) -> int:
        return len(self.ends) // 2

    def __getitem__(self, row: int) -> RowTexts:
        return RowTexts(self._part(2 * row), self._part(2 * row + 1), () if self.turns is None else self.turns[row])

    def _part(self, number: int) -> str:
        start = int(self.ends[number - 1]) if number else 0
        return self.data[start : int(self.ends[number])].tobytes().decode("utf-8", "surrogatepass")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
