"""The loss of the head that predicts the token after the next one, in an update of a policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from roll.distributed.strategy.megatron.inputs import ModelInput
from roll.types.batch import MicroBatch


@dataclass(frozen=True)
class Further:
    """What the head takes of a micro batch, and which of its slots count: those whose token after the next one is one
    that is trained."""

    following: torch.Tensor  # int64 [rows, slots]: the token behind that of each slot, 0 where there is none
    slots: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(cls, given: ModelInput) -> Further:
        """Index arithmetic, as for the slots themselves: rows are not mixed, and no rank asks another."""
        batch, sources = given.batch, given.sources
        width = batch.input_ids.shape[1]
        ids, trained = batch.input_ids.reshape(-1), batch.response_mask.reshape(-1)
        is_there = [(sources >= 0) & (sources % width + ahead < width) for ahead in (1, 2)]
        following, target = (torch.where(real, sources + i, 0) for i, real in enumerate(is_there, 1))
        shape = given.input_ids.T.shape
        slots = (is_there[1] & trained[target]).nonzero()[:, 0]
        return cls(torch.where(is_there[0], ids[following], 0).view(shape).T.contiguous(), slots, ids[target[slots]])


@dataclass(frozen=True)
class FurtherLoss:
    """`factor` x the mean cross-entropy over the `num_tokens` of an update, all ranks and micro batches together."""

    factor: float
    num_tokens: int

    @classmethod
    def of(
        cls,
        factor: float,
        micro_batches: Sequence[MicroBatch],
        all_reduce_sum: Callable[[Sequence[float]], list[float]],
    ) -> FurtherLoss:
        """The loss for the micro batches of all ranks. No position predicts the first two tokens of a row."""
        counted = sum(int(batch.response_mask[:, 2:].sum()) for batch in micro_batches)
        return cls(factor, max(1, int(all_reduce_sum([counted])[0])))

    def __call__(self, cross_entropy: torch.Tensor) -> torch.Tensor:
        """The share of a micro batch, whose tokens have this sum."""
        return cross_entropy * (self.factor / self.num_tokens)
