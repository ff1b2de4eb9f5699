"""Training rows. Ragged rows are stored flat in numpy (no padding travels); torch appears when a micro batch is padded.

Alignment, everywhere: a per-token field at t speaks of `input_ids[t]` given what precedes it. So log_probs[t] is the
log-prob of token t, and it is 0 where `response_mask` is False.

Example: rows [5 6 7] and [8 9] are stored as lengths [3 2] and input_ids [5 6 7 8 9]; padded to [[5 6 7] [8 9 0]].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch

from roll.types.columns import check_columns, columns, per_row, per_token, per_turn, sum_rows, token_indices
from roll.types.media import Media, check_spans

FINISH_REASONS = ("stop", "length", "abort", "failed", "moved")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Token rows to score or to train on, wherever they come from: R rows, N tokens in all. So many neighbours as
    `together` says are drawn, and trained on, as one."""

    together: ClassVar[int] = 1
    lengths: Annotated[np.ndarray, per_row(np.int32)]
    input_ids: Annotated[np.ndarray, per_token(np.int32)]
    response_mask: Annotated[np.ndarray, per_token(np.bool_)]  # True where the loss counts: what the policy sampled
    loss_weights: Annotated[np.ndarray, per_row(np.float32)]
    media: tuple[Media, ...] | None = None  # of each row

    def __post_init__(self) -> None:
        check_columns(self, {"rows": len(self.lengths), "tokens": int(self.lengths.sum())})
        if self.media is not None and len(self.media) != len(self):
            raise ValueError(f"{type(self).__name__}.media has {len(self.media)} entries for {len(self)} rows")
        for media, length in zip(self.media or (), self.lengths, strict=False):
            check_spans(media, int(length), f"{type(self).__name__}.media")

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def response_lengths(self) -> np.ndarray:
        """int64 [R]: tokens of each row in its response mask."""
        return sum_rows(self.response_mask.astype(np.int64), self.lengths)

    @staticmethod
    def of(
        input_ids: Sequence[Sequence[int]], trained: Sequence[Sequence[bool]], media: Sequence[Media] | None = None
    ) -> Rows:
        """Rows of token ids, each with the tokens on which the loss counts, and with its pictures, if some show any.
        Example: of([[5, 6]], [[False, True]])."""
        return Rows(
            lengths=np.array([len(ids) for ids in input_ids], np.int32),
            input_ids=np.array([token for ids in input_ids for token in ids], np.int32),
            response_mask=np.array([counts for mask in trained for counts in mask], np.bool_),
            loss_weights=np.ones(len(input_ids), np.float32),
            media=None if media is None else tuple(media),
        )

    def select(self, rows: np.ndarray) -> Self:
        tokens = token_indices(self.lengths, rows)
        taken: dict[str, Any] = {}
        for name, column in columns(type(self)).items():
            values = getattr(self, name)
            taken[name] = None if values is None else values[rows if column.unit == "rows" else tokens]
        if self.media is not None:
            taken["media"] = tuple(self.media[row] for row in rows)
        return replace(self, **taken)

    @classmethod
    def concatenate(cls, batches: Sequence[Self]) -> Self:
        """All rows, batch after batch. ValueError if a column is there in some of them only."""
        if len(batches) == 1:
            return batches[0]
        joined: dict[str, Any] = {}
        for name in (*columns(cls), "media"):
            parts = [part for batch in batches if (part := getattr(batch, name)) is not None]
            if len(parts) not in (0, len(batches)):
                raise ValueError(f"some batches have {name} and some have not")
            if parts:
                joined[name] = sum(parts, ()) if name == "media" else np.concatenate(parts)
        return cls(**joined)


@dataclass(frozen=True, kw_only=True)
class PairRows(Rows):
    """Rows 2i and 2i + 1 answer the same prompt, and the first is the better answer."""

    together: ClassVar[int] = 2
    margins: Annotated[np.ndarray, per_row(np.float32)]  # by how much, on both rows of a pair; 0 unless the data say
    ref_log_probs: Annotated[np.ndarray | None, per_token(np.float32)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self) % 2:
            raise ValueError(f"PairRows has {len(self)} rows, which are no pairs")


@dataclass(frozen=True, kw_only=True)
class TaughtRows(Rows):
    """Rows with a teacher's targets of their response tokens, one after the other (roll/features/teachers/targets.py).
    A row's first token has no target: nothing predicts it, and it is none of the response."""

    teacher_targets: np.ndarray  # float32 [response tokens, numbers of each]

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_teacher_targets(self, self.teacher_targets, self)


@dataclass(frozen=True, kw_only=True)
class SampledRows(Rows):
    """Rows as they were sampled."""

    rollout_log_probs: Annotated[np.ndarray, per_token(np.float32)]
    policy_versions: Annotated[np.ndarray, per_token(np.int32)]  # -1 where not sampled
    token_rewards: Annotated[np.ndarray | None, per_token(np.float32)] = None
    routes: Annotated[np.ndarray | None, per_token(np.int16, inner=2)] = None  # of the rollout, as TrainBatch has them


@dataclass(frozen=True, kw_only=True)
class SampleBatch(SampledRows):
    """Rows that were sampled and rewarded, before any credit is assigned."""

    rewards: Annotated[np.ndarray, per_row(np.float32)]  # NaN where the attempt failed
    group_ids: Annotated[np.ndarray, per_row(np.int64)]
    trajectory_ids: Annotated[np.ndarray, per_row(np.int64)]
    turns: Annotated[np.ndarray, per_row(np.int32)]
    domains: Annotated[np.ndarray, per_row(np.str_)]
    finish_reasons: Annotated[np.ndarray, per_row(np.int8)]  # index into FINISH_REASONS


@dataclass(frozen=True)
class TokenScores:
    """Scores of forward passes for the rows of a SampleBatch, flat and in its order, or None."""

    old_log_probs: Annotated[np.ndarray | None, per_token(np.float32)] = None
    halved_log_probs: Annotated[np.ndarray | None, per_token(np.float32)] = None  # the same at half the temperature
    ref_log_probs: Annotated[np.ndarray | None, per_token(np.float32)] = None
    values: Annotated[np.ndarray | None, per_token(np.float32)] = None
    teacher_log_probs: Annotated[np.ndarray | None, per_token(np.float32)] = None
    teacher_targets: np.ndarray | None = None  # of the reference, as TaughtRows has it
    routes: np.ndarray | None = None  # int16 [tokens, layers, k]: the experts that they chose


@dataclass(frozen=True)
class TrainBatch:
    """A SampleBatch with credit assigned: everything a loss may ask for. Flat per-token arrays, float32 [N].
    `old_log_probs` is None when the update may use its own detached log-probs."""

    samples: SampleBatch
    advantages: Annotated[np.ndarray, per_token(np.float32)]
    old_log_probs: Annotated[np.ndarray | None, per_token(np.float32)] = None
    ref_log_probs: Annotated[np.ndarray | None, per_token(np.float32)] = None
    values: Annotated[np.ndarray | None, per_token(np.float32)] = None
    returns: Annotated[np.ndarray | None, per_token(np.float32)] = None
    lag: Annotated[np.ndarray | None, per_token(np.int64)] = None  # steps of the weights that sampled behind these
    teacher_targets: np.ndarray | None = None  # of the reference, as TaughtRows has it
    routes: np.ndarray | None = None  # int16 [N, layers, k]: the experts that tokens go to, -1 where routers choose
    chosen: Annotated[np.ndarray | None, per_token(np.bool_)] = None  # by the objective, out of its whole update

    def __post_init__(self) -> None:
        check_columns(self, {"tokens": self.samples.num_tokens})
        if self.routes is not None and (self.routes.dtype != np.int16 or len(self.routes) != self.samples.num_tokens):
            raise ValueError(f"TrainBatch.routes is {self.routes.dtype} [{len(self.routes)}]")
        if self.teacher_targets is not None:
            _check_teacher_targets(self, self.teacher_targets, self.samples)

    def __len__(self) -> int:
        return len(self.samples)


def _check_teacher_targets(owner: object, targets: np.ndarray, rows: Rows) -> None:
    count = int(rows.response_lengths.sum())
    if targets.dtype != np.float32 or len(targets) != count:
        name = f"{type(owner).__name__}.teacher_targets"
        raise ValueError(f"{name} is {targets.dtype} [{len(targets)}], not float32 [{count}]")


def rows_of(batch: Rows | TrainBatch) -> Rows:
    return batch.samples if isinstance(batch, TrainBatch) else batch


_PER_ROW = ("lengths", "loss_weights", "margins")


@dataclass(frozen=True)
class MicroBatch:
    """Rows as a model takes them: torch, right padded, B rows of T tokens; every [B, T] field is aligned with
    input_ids. A causal model needs no attention mask then."""

    input_ids: torch.Tensor  # int64 [B, T]
    lengths: torch.Tensor  # int64 [B]
    response_mask: torch.Tensor  # bool [B, T]
    loss_weights: torch.Tensor  # floating point [B]
    rollout_log_probs: torch.Tensor | None = None  # floating point [B, T], and so on
    advantages: torch.Tensor | None = None
    old_log_probs: torch.Tensor | None = None
    ref_log_probs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    returns: torch.Tensor | None = None
    lag: torch.Tensor | None = None  # int64 [B, T], 0 outside response_mask; None: nothing is older than the weights
    chosen: torch.Tensor | None = None  # bool [B, T]: by the objective, out of the whole update
    margins: torch.Tensor | None = None  # floating point [B], of pairs
    teacher_targets: torch.Tensor | None = (
        None  # floating point [tokens of response_mask, numbers of each], by a teacher
    )
    routes: torch.Tensor | None = None  # int16 [B, T, layers, k]: experts of a mixture, -1 where its routers choose
    media: tuple[Media, ...] | None = None  # of each row

    def __post_init__(self) -> None:
        kinds = {"input_ids": torch.int64, "lengths": torch.int64, "response_mask": torch.bool, "lag": torch.int64}
        kinds |= {"routes": torch.int16, "chosen": torch.bool}
        for name, value in self._tensors().items():
            shape = list(self.input_ids.shape[:1] if name in _PER_ROW else self.input_ids.shape)
            if name == "teacher_targets":
                shape = [int(self.response_mask.sum()), *value.shape[1:]]
            elif name == "routes":
                shape += value.shape[2:]
            if list(value.shape) != shape:
                raise ValueError(f"MicroBatch.{name} is {list(value.shape)}, not {shape}, as input_ids ask for")
            if value.dtype != kinds[name] if name in kinds else not value.is_floating_point():
                raise ValueError(f"MicroBatch.{name} is {value.dtype}, not {kinds.get(name, 'floating point')}")

    def _tensors(self) -> dict[str, torch.Tensor]:
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "media"}
        return {name: value for name, value in values.items() if value is not None}

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def to(self, device: torch.device) -> MicroBatch:
        if self.input_ids.device == device:
            return self
        moved = {name: value.to(device) for name, value in self._tensors().items()}
        return replace(self, **moved)


@dataclass(frozen=True)
class TokenOutputs:
    """Outputs of a forward pass that a loss reads, [B, T] float32, aligned with input_ids and 0 outside response_mask.
    An output that was not computed is None.

    Log-probs and entropy are of the full distribution at the sampling temperature. values[t] is the critic's estimate
    of the return from the state before token t is sampled. `divergence` is that from a teacher, at the temperatures of
    roll/algorithms/distillation.py. `balance`, one number for each layer with experts, is that of
    roll/algorithms/moe_aux_loss.py. `routes` int16 [B, T, layers, k] are the experts that its routers chose, on the
    CPU, -1 for tokens that were not computed.
    """

    log_probs: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    values: torch.Tensor | None = None
    divergence: torch.Tensor | None = None
    balance: torch.Tensor | None = None
    routes: torch.Tensor | None = None


@dataclass(frozen=True)
class LossScale:
    """Counts over one whole update, all ranks and micro batches together: the loss divides by them, so that the
    gradient does not depend on how rows were spread. `num_samples` counts rows with at least one trained token.
    `expert`: the same of an expert's rows, which count apart."""

    num_tokens: int
    num_samples: int
    expert: LossScale | None = None

    @property
    def all_tokens(self) -> int:
        return self.num_tokens + (self.expert.num_tokens if self.expert else 0)


@dataclass(frozen=True)
class RowMeta:
    """Facts of each row that the driver knows; token tensors stay with the workers."""

    lengths: Annotated[np.ndarray, per_row(np.int32)]
    response_lengths: Annotated[np.ndarray, per_row(np.int64)]
    rewards: Annotated[np.ndarray, per_row(np.float32)]
    group_ids: Annotated[np.ndarray, per_row(np.int64)]
    trajectory_ids: Annotated[np.ndarray, per_row(np.int64)]
    turns: Annotated[np.ndarray, per_row(np.int32)]
    domains: Annotated[np.ndarray, per_row(np.str_)]
    finish_reasons: Annotated[np.ndarray, per_row(np.int8)]
    num_turns: Annotated[np.ndarray | None, per_row(np.int64)] = None  # with it, and flat over the rows' turns:
    turn_rewards: Annotated[np.ndarray | None, per_turn(np.float64)] = None
    state_keys: Annotated[np.ndarray | None, per_row(np.int64)] = None
    difficulty: Annotated[np.ndarray | None, per_row(np.float64)] = None  # by the data, NaN where they say nothing
    greedy_rewards: Annotated[np.ndarray | None, per_row(np.float64)] = None  # of its group, NaN where that failed
    reward_parts: Annotated[np.ndarray | None, per_row(np.float64, inner=1)] = (
        None  # [rows, parts], NaN where it failed
    )

    def __post_init__(self) -> None:
        turns = 0 if self.num_turns is None else int(self.num_turns.sum())
        check_columns(self, {"rows": len(self.lengths), "turns": turns})

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class Shard:
    """The rows of one data-parallel rank: which rows of the SampleSet they are, and a handle on the SampleBatch that
    holds them in exactly this order. The handle is opaque to the driver."""

    rows: np.ndarray  # int64
    handle: object


@dataclass(frozen=True)
class RowSet:
    """Rows as the driver holds them: their lengths, and where they are."""

    lengths: np.ndarray  # int32
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class SampleSet:
    """One step's samples as the driver holds them."""

    meta: RowMeta
    shards: tuple[Shard, ...]

    def __len__(self) -> int:
        return len(self.meta)

    @property
    def lengths(self) -> np.ndarray:
        return self.meta.lengths
