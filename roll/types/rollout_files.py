"""Groups of a step in one file, whole. Numpy's archive without pickles."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from roll.types.group_codec import RecordedGroup, decode, encode, joined

_HEADERS, _GROUPS = "headers", "groups"


def write_groups(path: Path, groups: Sequence[RecordedGroup]) -> None:
    """Writes groups to a file, under another name until it is complete."""
    if any(row.media for group in groups for row in group.trajectories):
        raise ValueError("pictures of rollouts are not recorded")
    pieces, headers = encode(groups)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    told = np.frombuffer(json.dumps(headers).encode("ascii"), np.uint8)
    numbers = np.array([group.group_id for group in groups], np.int64)
    with unfinished.open("wb") as stream:
        np.savez(stream, **joined(pieces), **{_GROUPS: numbers, _HEADERS: told})
    os.replace(unfinished, path)


def group_ids(path: Path) -> list[int]:
    """The numbers of the groups in a file, read without the rest."""
    with np.load(path, allow_pickle=False) as archive:
        return archive[_GROUPS].tolist()


def read_groups(path: Path) -> list[RecordedGroup]:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return decode(arrays, json.loads(arrays[_HEADERS].tobytes()))
