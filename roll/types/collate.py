"""Trajectory groups to flat rows, and flat rows to padded micro batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from roll.types.batch import FINISH_REASONS, MicroBatch, RowMeta, Rows, SampleBatch, TrainBatch, rows_of
from roll.types.columns import columns
from roll.types.ragged import count_runs, token_indices
from roll.types.rollout import Trajectory, TrajectoryGroup


def collate_groups(groups: Sequence[TrajectoryGroup]) -> SampleBatch:
    """One row per trajectory, in the order of the groups. A failed trajectory keeps its row with nothing to train on.
    Rows of a group with the same index are of one attempt and share a trajectory id."""
    rows = [(group, trajectory) for group in groups for trajectory in group.trajectories]
    if not rows:
        raise ValueError("no trajectories to collate")
    trajectories = [t for _, t in rows]
    if any(math.isnan(t.reward) and t.failure is None for t in trajectories):
        raise ValueError("an attempt that has not failed has no reward")
    token_rewards = None
    if any(t.token_rewards is not None for t in trajectories):
        token_rewards = np.concatenate(
            [
                t.token_rewards if t.token_rewards is not None else np.zeros(len(t.input_ids), np.float32)
                for t in trajectories
            ]
        )
    return SampleBatch(
        lengths=np.array([len(t.input_ids) for t in trajectories], np.int32),
        input_ids=np.concatenate([t.input_ids for t in trajectories]),
        response_mask=np.concatenate([t.response_mask & (t.failure is None) for t in trajectories]),
        rollout_log_probs=np.concatenate([t.log_probs for t in trajectories]),
        policy_versions=np.concatenate([t.policy_versions for t in trajectories]),
        rewards=np.array([t.reward for t in trajectories], np.float32),
        group_ids=np.array([g.group_id for g, _ in rows], np.int64),
        trajectory_ids=_attempt_ids(groups),
        turns=np.array([t.turn for t in trajectories], np.int32),
        domains=np.array([g.task.domain for g, _ in rows]),
        finish_reasons=np.array([FINISH_REASONS.index(t.finish_reason) for t in trajectories], np.int8),
        loss_weights=np.ones(len(rows), np.float32),
        token_rewards=token_rewards,
        media=tuple(t.media for t in trajectories) if any(t.media for t in trajectories) else None,
    )


def _attempt_ids(groups: Sequence[TrajectoryGroup]) -> np.ndarray:
    """Attempts counted through all groups. Example: indices [0 0 1] and [0] -> [0 0 1 2]."""
    ids: dict[tuple[int, int], int] = {}
    keys = [(place, t.index) for place, group in enumerate(groups) for t in group.trajectories]
    return np.array([ids.setdefault(key, len(ids)) for key in keys], np.int64)


def row_meta(samples: SampleBatch, groups: Sequence[TrajectoryGroup] = ()) -> RowMeta:
    """Metadata of the rows that `collate_groups(groups)` made; the groups themselves add rewards per turn and the
    difficulty of their task, if they know them.

    Raises ValueError if a trajectory's turn rewards do not fit its turns."""
    turns = _turns(samples, [t for group in groups for t in group.trajectories])
    return RowMeta(
        lengths=samples.lengths,
        response_lengths=samples.response_lengths,
        rewards=samples.rewards,
        group_ids=samples.group_ids,
        trajectory_ids=samples.trajectory_ids,
        turns=samples.turns,
        domains=samples.domains,
        finish_reasons=samples.finish_reasons,
        difficulty=_difficulty(groups),
        **turns,
    )


def _difficulty(groups: Sequence[TrajectoryGroup]) -> np.ndarray | None:
    """From a column `difficulty` of the data, where it holds numbers."""
    given = [group.task.payload.get("difficulty") for group in groups]
    if all(value is None for value in given):
        return None
    numbers = [float(v) if isinstance(v, int | float) and not isinstance(v, bool) else np.nan for v in given]
    return np.repeat(numbers, [len(group.trajectories) for group in groups])


def _turns(samples: SampleBatch, trajectories: Sequence[Trajectory]) -> dict[str, np.ndarray]:
    if not any(t.turn_rewards is not None for t in trajectories):
        return {}
    num_turns = count_runs(samples.response_mask, samples.lengths)
    rewards: list[np.ndarray] = []
    for row, (trajectory, count) in enumerate(zip(trajectories, num_turns, strict=True)):
        given = trajectory.turn_rewards
        if trajectory.failure is not None or given is None:
            given = np.zeros(count)
            given[-1:] = np.nan_to_num(trajectory.reward)
        if len(given) != count:
            raise ValueError(f"row {row} has {count} turns and {len(given)} turn rewards")
        rewards.append(given.astype(np.float64))
    return {
        "num_turns": num_turns,
        "turn_rewards": np.concatenate(rewards),
        "state_keys": np.array([t.state_key for t in trajectories], np.int64),
    }


def padding_rows(samples: SampleBatch, count: int) -> SampleBatch:
    """`count` copies of the shortest row with nothing to train on: they even out ranks and cannot change the
    gradient."""
    shortest = samples.select(np.full(count, int(np.argmin(samples.lengths))))
    return replace(
        shortest,
        response_mask=np.zeros(shortest.num_tokens, bool),
        rewards=np.full(count, np.nan, np.float32),
        group_ids=np.full(count, -1, np.int64),
        trajectory_ids=np.full(count, -1, np.int64),
    )


def pad(batch: Rows | TrainBatch, rows: np.ndarray, round_to: int = 1) -> MicroBatch:
    """These rows as one right-padded micro batch on the CPU, T rounded up to a multiple of `round_to`."""
    source = rows_of(batch)
    lengths = source.lengths[rows]
    width = -(-int(lengths.max()) // round_to) * round_to
    inside = np.arange(width) < lengths[:, None]
    tokens = token_indices(source.lengths, rows)

    def padded(values: np.ndarray, dtype: type) -> torch.Tensor:
        out = np.zeros((len(rows), width), dtype)
        out[inside] = values[tokens]
        return torch.from_numpy(out)

    given = {"rollout_log_probs": source.rollout_log_probs} if isinstance(source, SampleBatch) else {}
    if isinstance(batch, TrainBatch):
        given |= {name: getattr(batch, name) for name in columns(TrainBatch)}
    return MicroBatch(
        input_ids=padded(source.input_ids, np.int64),
        lengths=torch.from_numpy(lengths.astype(np.int64)),
        response_mask=padded(source.response_mask, bool),
        loss_weights=torch.from_numpy(source.loss_weights[rows]),
        media=None if source.media is None else tuple(source.media[row] for row in rows),
        **{name: padded(values, np.float32) for name, values in given.items() if values is not None},
    )


def unpad(values: torch.Tensor, lengths: np.ndarray) -> np.ndarray:
    """The inverse of `pad` for one [B, T] tensor: flat float32 [sum of lengths], row after row."""
    inside = np.arange(values.shape[1]) < lengths[:, None]
    return values.detach().float().cpu().numpy()[inside]
