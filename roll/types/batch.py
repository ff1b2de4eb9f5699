"""Training rows. Ragged rows are stored flat in numpy (no padding travels); torch appears when a micro batch is padded.

Alignment, everywhere: a per-token field at t speaks of `input_ids[t]` given what precedes it. So log_probs[t] is the
log-prob of token t, and it is 0 where `response_mask` is False.

Example: rows [5 6 7] and [8 9] are stored as lengths [3 2] and input_ids [5 6 7 8 9]; padded to [[5 6 7] [8 9 0]].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from roll.types.ragged import sum_rows, token_indices

FINISH_REASONS = ("stop", "length", "abort", "failed")


def _check_flat(
    owner: object, num_rows: int, num_tokens: int, per_row: Sequence[str], per_token: Sequence[str]
) -> None:
    for names, size, unit in ((per_row, num_rows, "rows"), (per_token, num_tokens, "tokens")):
        for name in names:
            values = getattr(owner, name)
            if values is not None and len(values) != size:
                raise ValueError(f"{type(owner).__name__}.{name} has {len(values)} entries for {size} {unit}")


@dataclass(frozen=True)
class SampleBatch:
    """Rows that were sampled and rewarded, before any credit is assigned. R rows, N tokens in all."""

    PER_TOKEN = ("input_ids", "response_mask", "rollout_log_probs", "policy_versions", "token_rewards")
    PER_ROW = ("rewards", "group_ids", "trajectory_ids", "turns", "domains", "finish_reasons", "loss_weights")

    lengths: np.ndarray  # int32 [R]
    input_ids: np.ndarray  # int32 [N]
    response_mask: np.ndarray  # bool [N]: True where the policy sampled and the row is trained on
    rollout_log_probs: np.ndarray  # float32 [N]
    policy_versions: np.ndarray  # int32 [N], -1 where not sampled
    rewards: np.ndarray  # float32 [R], NaN where the attempt failed
    group_ids: np.ndarray  # int64 [R]
    trajectory_ids: np.ndarray  # int64 [R]
    turns: np.ndarray  # int32 [R]
    domains: np.ndarray  # str [R]
    finish_reasons: np.ndarray  # int8 [R], index into FINISH_REASONS
    loss_weights: np.ndarray  # float32 [R]
    token_rewards: np.ndarray | None = None  # float32 [N]

    def __post_init__(self) -> None:
        _check_flat(self, len(self.lengths), int(self.lengths.sum()), self.PER_ROW, self.PER_TOKEN)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def row_starts(self) -> np.ndarray:
        """int64 [R]: the flat position at which each row starts."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    @property
    def response_lengths(self) -> np.ndarray:
        """int64 [R]: sampled tokens of each row."""
        return sum_rows(self.response_mask.astype(np.int64), self.lengths)

    def select(self, rows: np.ndarray) -> SampleBatch:
        """These rows, in this order."""
        tokens = token_indices(self.lengths, rows)
        return replace(self, lengths=self.lengths[rows], **_take(self, rows, tokens))

    @staticmethod
    def concatenate(batches: Sequence[SampleBatch]) -> SampleBatch:
        if len(batches) == 1:
            return batches[0]
        columns: dict[str, np.ndarray | None] = {}
        for f in fields(SampleBatch):
            parts = [getattr(b, f.name) for b in batches]
            if any(p is None for p in parts) and not all(p is None for p in parts):
                raise ValueError(f"some batches have {f.name} and some have not")
            columns[f.name] = None if parts[0] is None else np.concatenate(parts)
        return SampleBatch(**columns)  # type: ignore[arg-type]


def _take(batch: SampleBatch, rows: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray | None]:
    taken: dict[str, np.ndarray | None] = {}
    for name in (*batch.PER_ROW, *batch.PER_TOKEN):
        values = getattr(batch, name)
        taken[name] = None if values is None else values[rows if name in batch.PER_ROW else tokens]
    return taken


@dataclass(frozen=True)
class TokenScores:
    """What forward passes say of the rows of a SampleBatch, flat and in its order; absent is None. float32 [N]."""

    old_log_probs: np.ndarray | None = None
    ref_log_probs: np.ndarray | None = None
    values: np.ndarray | None = None


@dataclass(frozen=True)
class TrainBatch:
    """A SampleBatch with credit assigned: everything a loss may ask for. Flat per-token arrays, float32 [N].

    `old_log_probs` is None when the update may use its own detached log-probs (one update per step, nothing else needs
    them).
    """

    PER_TOKEN = ("advantages", "old_log_probs", "ref_log_probs", "values", "returns")

    samples: SampleBatch
    advantages: np.ndarray
    old_log_probs: np.ndarray | None = None
    ref_log_probs: np.ndarray | None = None
    values: np.ndarray | None = None
    returns: np.ndarray | None = None

    def __post_init__(self) -> None:
        _check_flat(self, len(self.samples), self.samples.num_tokens, (), self.PER_TOKEN)

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True)
class MicroBatch:
    """Rows as a model takes them: torch, right padded. B rows of T tokens; every [B, T] field is aligned with
    input_ids.

    Right padding and a causal model need no attention mask: what is sampled never sees what comes after it.
    """

    input_ids: torch.Tensor  # int64 [B, T]
    lengths: torch.Tensor  # int64 [B]
    response_mask: torch.Tensor  # bool [B, T]
    loss_weights: torch.Tensor  # float32 [B]
    rollout_log_probs: torch.Tensor  # float32 [B, T]
    advantages: torch.Tensor | None = None  # float32 [B, T], and so on
    old_log_probs: torch.Tensor | None = None
    ref_log_probs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    returns: torch.Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.input_ids.shape
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None or f.name in ("lengths", "loss_weights"):
                continue
            if value.shape != shape:
                raise ValueError(f"MicroBatch.{f.name} is {tuple(value.shape)}, input_ids are {tuple(shape)}")

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def to(self, device: torch.device) -> MicroBatch:
        if self.input_ids.device == device:
            return self
        moved: dict[str, Any] = {f.name: v.to(device) for f in fields(self) if (v := getattr(self, f.name)) is not None}
        return MicroBatch(**moved)


@dataclass(frozen=True)
class TokenOutputs:
    """What a forward pass gives a loss, [B, T] float32, aligned with input_ids and 0 outside response_mask; absent is
    None.

    Log-probs and entropy are of the full distribution at the sampling temperature. values[t] is the critic's estimate
    of the return from the state before token t is sampled.
    """

    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    values: torch.Tensor | None = None


@dataclass(frozen=True)
class LossScale:
    """Counts over one whole update, all ranks and micro batches together: the loss divides by them, so that the
    gradient does not depend on how rows were spread. `num_samples` counts rows with at least one trained token."""

    num_tokens: int
    num_samples: int


@dataclass(frozen=True)
class RowMeta:
    """What the driver knows of each row; token tensors stay with the workers. R entries each."""

    lengths: np.ndarray
    response_lengths: np.ndarray
    rewards: np.ndarray
    group_ids: np.ndarray
    trajectory_ids: np.ndarray
    turns: np.ndarray
    domains: np.ndarray
    finish_reasons: np.ndarray
    num_turns: np.ndarray | None = None  # of each row; with it, and flat over the rows' turns:
    turn_rewards: np.ndarray | None = None  # float64 [sum of num_turns]
    state_keys: np.ndarray | None = None  # int64 [R]
    difficulty: np.ndarray | None = None  # float64 [R], what the data say of the task, NaN where they say nothing

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class Shard:
    """The rows of one data-parallel rank: which rows of the SampleSet they are, and a handle on the SampleBatch that
    holds them in exactly this order. The handle is opaque to the driver."""

    rows: np.ndarray  # int64
    handle: object


@dataclass(frozen=True)
class SampleSet:
    """One step's samples as the driver holds them."""

    meta: RowMeta
    shards: tuple[Shard, ...]

    def __len__(self) -> int:
        return len(self.meta)
