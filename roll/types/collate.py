"""Trajectory groups to flat rows, and flat rows to padded micro batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import numpy as np
import torch

from roll.errors import RewardError
from roll.types.batch import (
    FINISH_REASONS,
    MicroBatch,
    PairRows,
    RowMeta,
    Rows,
    SampleBatch,
    SampledRows,
    TaughtRows,
    TrainBatch,
    rows_of,
)
from roll.types.columns import check_columns, columns, per_row, token_indices
from roll.types.rollout import LocalRow, StoredRow, Trajectory, TrajectoryGroup, stored_among

_MOST_SIDES = 1 << 16


def collate_groups(groups: Sequence[TrajectoryGroup]) -> SampleBatch:
    """One row per trajectory, in the order of the groups. A failed trajectory keeps its row with nothing to train on.
    Rows of a group with the same index are of one attempt and share a trajectory id. Raises TokensElsewhere for rows in
    the object store."""
    rows = sampled_rows([t.here for group in groups for t in group.trajectories])
    failed = [t.failure is not None for group in groups for t in group.trajectories]
    return with_columns(rows, np.array(failed), row_columns(groups))


def with_columns(rows: SampledRows, failed: np.ndarray, columns: Mapping[str, Any]) -> SampleBatch:
    """The rows with what else is known of each; of those that failed nothing is trained on."""
    row_columns = {field.name: getattr(rows, field.name) for field in fields(rows)}
    # A failed attempt keeps its row, so that groups and ranks keep their sizes, but has no token to train on.
    row_columns["response_mask"] = rows.response_mask & ~np.repeat(failed, rows.lengths)
    return SampleBatch(**row_columns, **columns)


def sampled_rows(contents: Sequence[LocalRow]) -> SampledRows:
    if not contents:
        raise ValueError("no trajectories to collate")
    token_rewards = None
    if any(row.token_rewards is not None for row in contents):
        token_rewards = np.concatenate(
            [
                row.token_rewards if row.token_rewards is not None else np.zeros(len(row.input_ids), np.float32)
                for row in contents
            ]
        )
    return SampledRows(
        lengths=np.array([len(row.input_ids) for row in contents], np.int32),
        input_ids=np.concatenate([row.input_ids for row in contents]),
        response_mask=np.concatenate([row.response_mask for row in contents]),
        rollout_log_probs=np.concatenate([row.log_probs for row in contents]),
        policy_versions=np.concatenate([row.policy_versions for row in contents]),
        loss_weights=np.ones(len(contents), np.float32),
        token_rewards=token_rewards,
        routes=_all_routes(contents),
        media=tuple(row.media for row in contents) if any(row.media for row in contents) else None,
    )


def _all_routes(contents: Sequence[LocalRow]) -> np.ndarray | None:
    """Routes of all rows, -1 for rows without; None where no row has any."""
    shape = next((row.routes.shape[1:] for row in contents if row.routes is not None), None)
    if shape is None:
        return None
    unknown = np.full((max(len(row.input_ids) for row in contents), *shape), -1, np.int16)
    return np.concatenate([unknown[: len(row.input_ids)] if row.routes is None else row.routes for row in contents])


def split_rows(rows: SampledRows) -> list[dict[str, Any]]:
    """The inverse of `sampled_rows`: of each row the fields of a LocalRow that it holds."""
    ends = np.cumsum(rows.lengths)[:-1]
    names = {
        "input_ids": rows.input_ids,
        "response_mask": rows.response_mask,
        "log_probs": rows.rollout_log_probs,
        "policy_versions": rows.policy_versions,
        "token_rewards": rows.token_rewards,
        "routes": rows.routes,
    }
    split = {name: np.split(values, ends) for name, values in names.items() if values is not None}
    media = rows.media or ((),) * len(rows)
    return [{name: of[row] for name, of in split.items()} | {"media": media[row]} for row in range(len(rows))]


def stored(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return the attempts with their rows stored together, under handles that are not known yet."""
    return [replace(t, content=StoredRow(None, None, row, t.facts)) for row, t in enumerate(trajectories)]


def placed(trajectories: Sequence[Trajectory], handles: Sequence[object]) -> list[Trajectory]:
    """Return the attempts, those that are stored with the handles on their tokens and texts."""
    (tokens, texts), places = handles, stored_among(trajectories)
    return [
        replace(t, content=replace(places[i], tokens=tokens, texts=texts)) if i in places else t
        for i, t in enumerate(trajectories)
    ]


def row_columns(groups: Sequence[TrajectoryGroup]) -> dict[str, np.ndarray]:
    rows = [(group, trajectory) for group in groups for trajectory in group.trajectories]
    if any(math.isnan(t.reward) and t.failure is None for _, t in rows):
        raise ValueError("an attempt that has not failed has no reward")
    return {
        "rewards": np.array([t.reward for _, t in rows], np.float32),
        "group_ids": np.array([_compared(g.group_id, t.side) for g, t in rows], np.int64),
        "trajectory_ids": _attempt_ids(groups),
        "turns": np.array([t.turn for _, t in rows], np.int32),
        "domains": np.array([g.task.domain for g, _ in rows]),
        "finish_reasons": np.array([FINISH_REASONS.index(t.finish_reason) for _, t in rows], np.int8),
    }


def _compared(group_id: int, side: int) -> int:
    """The number under which rows are compared: a side with itself. No group has a number below 0."""
    return group_id if not side else -(group_id * _MOST_SIDES + side)


def _attempt_ids(groups: Sequence[TrajectoryGroup]) -> np.ndarray:
    """Attempts counted through all groups, each side for itself: indices [0 0 1] and [0] -> [0 0 1 2]."""
    ids: dict[tuple[int, int, int], int] = {}
    keys = [(place, t.index, t.side) for place, group in enumerate(groups) for t in group.trajectories]
    return np.array([ids.setdefault(key, len(ids)) for key in keys], np.int64)


def row_meta(groups: Sequence[TrajectoryGroup], parts: Sequence[str] = ()) -> RowMeta:
    """Metadata of the rows of these groups, in their order, wherever their tokens are. `parts`: metrics of the attempts
    that are parts of their rewards.

    Raises ValueError if a trajectory's turn rewards do not fit its turns, RewardError if a part is missing."""
    trajectories = [t for group in groups for t in group.trajectories]
    sampled = [0 if t.failure is not None else t.facts.num_sampled for t in trajectories]
    return RowMeta(
        lengths=np.array([t.facts.num_tokens for t in trajectories], np.int32),
        response_lengths=np.array(sampled, np.int64),
        difficulty=_difficulty(groups),
        greedy_rewards=_greedy_rewards(groups),
        reward_parts=_reward_parts(trajectories, parts) if parts else None,
        **row_columns(groups),
        **_turns(trajectories),
    )


def _reward_parts(trajectories: Sequence[Trajectory], names: Sequence[str]) -> np.ndarray:
    parts = np.full((len(trajectories), len(names)), np.nan)
    for row, trajectory in enumerate(trajectories):
        if trajectory.failure is not None:
            continue
        if missing := [name for name in names if name not in trajectory.metrics]:
            raise RewardError(
                f"gdpo_reward_keys: no reward gave {', '.join(missing)} of an attempt; there are "
                f"{', '.join(sorted(trajectory.metrics)) or 'none'}. Name metrics that every reward gives."
            )
        parts[row] = [trajectory.metrics[name] for name in names]
    return parts


def _greedy_rewards(groups: Sequence[TrajectoryGroup]) -> np.ndarray | None:
    rewards = [group.greedy_reward for group in groups]
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return None
    if len(known) < len(rewards):
        raise ValueError("some groups have a greedy response and some have not")
    return np.repeat(np.array(known, np.float64), [len(group.trajectories) for group in groups])


def _difficulty(groups: Sequence[TrajectoryGroup]) -> np.ndarray | None:
    """Difficulty of each row by the data's column: NaN if it holds no number, None without the column."""
    difficulties = [group.task.payload.get("difficulty") for group in groups]
    if all(value is None for value in difficulties):
        return None
    numbers = [float(v) if isinstance(v, int | float) and not isinstance(v, bool) else np.nan for v in difficulties]
    return np.repeat(numbers, [len(group.trajectories) for group in groups])


def _turns(trajectories: Sequence[Trajectory]) -> dict[str, np.ndarray]:
    if not any(t.turn_rewards is not None for t in trajectories):
        return {}
    num_turns = [0 if t.failure is not None else t.facts.num_turns for t in trajectories]
    rewards: list[np.ndarray] = []
    for row, (trajectory, count) in enumerate(zip(trajectories, num_turns, strict=True)):
        turn_rewards = trajectory.turn_rewards
        if trajectory.failure is not None or turn_rewards is None:
            turn_rewards = np.zeros(count)
            turn_rewards[-1:] = np.nan_to_num(trajectory.reward)
        if len(turn_rewards) != count:
            raise ValueError(f"row {row} has {count} turns and {len(turn_rewards)} turn rewards")
        rewards.append(turn_rewards.astype(np.float64))
    return {
        "num_turns": np.array(num_turns, np.int64),
        "turn_rewards": np.concatenate(rewards),
        "state_keys": np.array([t.state_key for t in trajectories], np.int64),
    }


def padding_rows(samples: SampleBatch, count: int) -> SampleBatch:
    """`count` copies of the shortest row with nothing to train on: they cannot change the gradient."""
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

    arrays: dict[str, np.ndarray | None] = {}
    if isinstance(source, SampledRows):
        arrays["rollout_log_probs"] = source.rollout_log_probs
    if isinstance(source, PairRows):
        arrays["ref_log_probs"] = source.ref_log_probs
    if isinstance(batch, TrainBatch):
        arrays |= {name: getattr(batch, name) for name in columns(TrainBatch)}
    return MicroBatch(
        input_ids=padded(source.input_ids, np.int64),
        lengths=torch.from_numpy(lengths.astype(np.int64)),
        response_mask=padded(source.response_mask, bool),
        loss_weights=torch.from_numpy(source.loss_weights[rows]),
        media=None if source.media is None else tuple(source.media[row] for row in rows),
        margins=torch.from_numpy(source.margins[rows]) if isinstance(source, PairRows) else None,
        teacher_targets=_teacher_targets(batch, source.response_lengths, rows)
        if isinstance(batch, TaughtRows | TrainBatch)
        else None,
        routes=_routes(batch, tokens, inside),
        **{name: padded(values, values.dtype.type) for name, values in arrays.items() if values is not None},
    )


def routes_of(batch: Rows | TrainBatch) -> np.ndarray | None:
    """Return the experts of the latest forward pass, or else of the rollout, as int16 [tokens, layers, k]."""
    source = rows_of(batch)
    sampled = source.routes if isinstance(source, SampledRows) else None
    return batch.routes if isinstance(batch, TrainBatch) and batch.routes is not None else sampled


def _routes(batch: Rows | TrainBatch, tokens: np.ndarray, inside: np.ndarray) -> torch.Tensor | None:
    routes = routes_of(batch)
    if routes is None:
        return None
    out = np.full((*inside.shape, *routes.shape[1:]), -1, np.int16)
    out[inside] = routes[tokens]
    return torch.from_numpy(out)


def _teacher_targets(
    batch: TaughtRows | TrainBatch, response_lengths: np.ndarray, rows: np.ndarray
) -> torch.Tensor | None:
    if batch.teacher_targets is None:
        return None
    return torch.from_numpy(batch.teacher_targets[token_indices(response_lengths, rows)])


def unpad(values: torch.Tensor, lengths: np.ndarray) -> np.ndarray:
    """The inverse of `pad` for one [B, T, ...] tensor: flat [sum of lengths, ...], float32 unless of whole numbers."""
    inside = np.arange(values.shape[1]) < lengths[:, None]
    whole = values.detach() if not values.is_floating_point() else values.detach().float()
    return whole.cpu().numpy()[inside]


# A step's rows where their tokens lie in pieces: which row is where, and a rank's shard put together from them.


@dataclass(frozen=True, kw_only=True)
class RowTable:
    """Rows by reference: row i is entry `places[i]` of chunk `pieces[i]`; with the facts that need no tokens."""

    pieces: Annotated[np.ndarray, per_row(np.int64)]
    places: Annotated[np.ndarray, per_row(np.int64)]
    failed: Annotated[np.ndarray, per_row(np.bool_)]  # nothing of them is trained on
    rewards: Annotated[np.ndarray, per_row(np.float32)]
    group_ids: Annotated[np.ndarray, per_row(np.int64)]
    trajectory_ids: Annotated[np.ndarray, per_row(np.int64)]
    turns: Annotated[np.ndarray, per_row(np.int32)]
    domains: Annotated[np.ndarray, per_row(np.str_)]
    finish_reasons: Annotated[np.ndarray, per_row(np.int8)]

    def __post_init__(self) -> None:
        check_columns(self, {"rows": len(self.pieces)})

    def __len__(self) -> int:
        return len(self.pieces)

    def take(self, rows: np.ndarray, shortest: int) -> RowTable:
        """These rows, in this order. One beyond the end is a padding row, as `padding_rows` makes them."""
        added = rows >= len(self)
        source = np.where(added, shortest, rows)
        taken: dict[str, Any] = {name: getattr(self, name)[source] for name in columns(RowTable)}
        taken["failed"][added] = True
        taken["rewards"][added] = np.nan
        taken["group_ids"][added] = taken["trajectory_ids"][added] = -1
        return RowTable(**taken)

    def local_rows(self) -> tuple[np.ndarray, RowTable]:
        """The pieces in which these rows lie, and the table with these alone, counted anew."""
        used, pieces = np.unique(self.pieces, return_inverse=True)
        return used, replace(self, pieces=pieces.astype(np.int64))


def assemble(table: RowTable, pieces: Sequence[SampledRows]) -> SampleBatch:
    """The rows of the table, in its order: what `collate_groups` makes where all tokens are here."""
    order = np.argsort(table.pieces, kind="stable")
    ends = np.cumsum(np.bincount(table.pieces, minlength=len(pieces)))
    chosen = np.split(table.places[order], ends[:-1])
    parts = _alike([piece.select(rows) for piece, rows in zip(pieces, chosen, strict=True)])
    rows = SampledRows.concatenate(parts).select(np.argsort(order))
    names = {field.name for field in fields(RowTable)} - {"pieces", "places", "failed"}
    return with_columns(rows, table.failed, {name: getattr(table, name) for name in names})


def _alike(parts: Sequence[SampledRows]) -> list[SampledRows]:
    """Give all parts the same columns: token rewards 0, routes -1, and no images where one lacks them."""
    if any(part.token_rewards is not None for part in parts):
        parts = [
            replace(part, token_rewards=np.zeros(part.num_tokens, np.float32)) if part.token_rewards is None else part
            for part in parts
        ]
    shape = next((part.routes.shape[1:] for part in parts if part.routes is not None), None)
    if shape is not None:
        parts = [
            replace(part, routes=np.full((part.num_tokens, *shape), -1, np.int16)) if part.routes is None else part
            for part in parts
        ]
    if any(part.media is not None for part in parts):
        parts = [replace(part, media=((),) * len(part)) if part.media is None else part for part in parts]
    return list(parts)
