"""Groups of a step in a file, whole: tokens, log-probs, versions, texts, rewards. Numpy's archive without pickles."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from roll.types.batch import SampledRows
from roll.types.collate import sampled_rows, split_rows
from roll.types.columns import columns
from roll.types.rollout import Trajectory, TrajectoryBase, Turn
from roll.utils.plain import plain_fields

_ROWS = "rows_"
_TOLD = [field.name for field in fields(TrajectoryBase) if field.name not in ("turn_rewards", "extra")]


@dataclass(frozen=True)
class RecordedGroup:
    """The attempts of a group, and the task that they are of."""

    group_id: int
    task_id: str
    trajectories: tuple[Trajectory, ...]


def write_groups(path: Path, groups: Sequence[RecordedGroup]) -> None:
    """Under another name until it is whole."""
    trajectories = [t for group in groups for t in group.trajectories]
    rows = sampled_rows(trajectories)
    if rows.media is not None:
        raise ValueError("pictures of rollouts are not recorded")
    arrays = {f"{_ROWS}{name}": value for name in columns(SampledRows) if (value := getattr(rows, name)) is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as stream:
        np.savez(
            stream,
            group_ids=np.array([group.group_id for group in groups], np.int64),
            told=_as_bytes([_told_of_group(group) for group in groups]),
            **arrays,
        )
    os.replace(unfinished, path)


def group_ids(path: Path) -> list[int]:
    """The numbers of the groups in a file, read without the rest."""
    with np.load(path, allow_pickle=False) as archive:
        return archive["group_ids"].tolist()


def read_groups(path: Path) -> list[RecordedGroup]:
    with np.load(path, allow_pickle=False) as archive:
        told = json.loads(archive["told"].tobytes())
        given = {name.removeprefix(_ROWS): archive[name] for name in archive.files if name.startswith(_ROWS)}
    rows = iter(split_rows(SampledRows(**given)))
    return [
        RecordedGroup(
            group["group_id"], group["task_id"], tuple(_trajectory(row, next(rows)) for row in group["trajectories"])
        )
        for group in told
    ]


def _told_of_group(group: RecordedGroup) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "task_id": group.task_id,
        "trajectories": [_told_of_row(t) for t in group.trajectories],
    }


def _told_of_row(row: Trajectory) -> dict[str, Any]:
    return {
        **{name: getattr(row, name) for name in _TOLD},
        "metrics": dict(row.metrics),
        "extra": plain_fields(row.extra),
        "turn_rewards": None if row.turn_rewards is None else row.turn_rewards.tolist(),
        "response_text": row.response_text,
        "turns": [{**asdict(turn), "metrics": dict(turn.metrics)} for turn in row.turns],
    }


def _trajectory(told: Mapping[str, Any], tokens: Mapping[str, Any]) -> Trajectory:
    rewards = told["turn_rewards"]
    given = {
        **told,
        "turn_rewards": None if rewards is None else np.array(rewards, np.float32),
        "turns": tuple(Turn(**turn) for turn in told["turns"]),
    }
    return Trajectory(**given, **tokens)


def _as_bytes(told: object) -> np.ndarray:
    return np.frombuffer(json.dumps(told).encode("utf-8"), np.uint8)
