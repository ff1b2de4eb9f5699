"""Lengths of groups that another run has sampled."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from roll.errors import ConfigError
from roll.simulate.workload import NO_DELAYS, Delays, GroupWork, Recorded
from roll.types.rollout import Trajectory

if TYPE_CHECKING:
    from roll.types.rollout_files import RecordedGroup

KEY = "--lengths"


def read_recorded(directory: Path, delays: Delays = NO_DELAYS, seed: int = 0) -> Recorded:
    """Reads groups from the dumps of `rollout_mock` (`step_*.npz`: every group, turn by turn), or from the sample
    rollouts of a run (`step_*.jsonl`: some groups, each attempt as one turn). Raises ConfigError if there are
    neither."""
    dumps = sorted(directory.glob("step_*.npz"))
    records = sorted(path for path in directory.glob("step_*.jsonl") if not path.name.endswith(".val.jsonl"))
    groups: list[GroupWork] = []
    for path in dumps or records:
        try:
            found = _of_dumps(path) if dumps else _of_records(path)
            groups += [group for group in found if group.lengths.size]
        except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile) as error:
            raise ConfigError(f"{KEY}: {path} cannot be read: {error}.") from error
    if not groups:
        raise ConfigError(
            f"{KEY} {directory}: no group of rollouts is there, neither in step_*.npz (rollout_mock) nor in "
            "step_*.jsonl (rollouts of a run)."
        )
    return Recorded(groups, delays, seed)


def _of_dumps(path: Path) -> Iterator[GroupWork]:
    from roll.types.rollout_files import read_groups  # imports torch

    return map(_of_dump, read_groups(path))


def _of_dump(group: RecordedGroup) -> GroupWork:
    attempts: defaultdict[int, list[Trajectory]] = defaultdict(list)
    for row in group.trajectories:
        attempts[row.index].append(row)
    rows = list(attempts.values())
    turns = [[length for row in attempt for length in _sampled_runs(row.response_mask)] for attempt in rows]
    first = group.trajectories[0]
    prompt = int(first.response_mask.argmax()) if first.response_mask.any() else len(first.input_ids)
    between = sum(int((~row.response_mask).sum()) - prompt for row in group.trajectories)
    later = sum(len(lengths) - 1 for lengths in turns if lengths)
    rewards = [attempt[0].reward for attempt in rows]
    return _group(prompt, turns, rewards, max(0, between // later) if later else 0)


def _sampled_runs(mask: np.ndarray) -> Iterator[int]:
    for is_sampled, run in groupby(mask.tolist()):
        if is_sampled:
            yield sum(1 for _ in run)


def _of_records(path: Path) -> Iterator[GroupWork]:
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    by_group: defaultdict[Any, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_group[line["group_id"]].append(line)
    for group in by_group.values():
        rewards = [float("nan") if line["reward"] is None else float(line["reward"]) for line in group]
        yield _group(int(group[0]["prompt_tokens"]), [[int(line["response_tokens"])] for line in group], rewards, 0)


def _group(prompt: int, turns: Sequence[Sequence[int]], rewards: Sequence[float], observation: int) -> GroupWork:
    lengths = np.zeros((len(turns), max(map(len, turns), default=0)), np.int64)
    for row, given in enumerate(turns):
        lengths[row, : len(given)] = given
    return GroupWork(prompt, lengths, np.zeros(lengths.shape), np.array(rewards, np.float64), observation)
