"""Requests to the last stage about its hidden states, and its replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region

from roll.algorithms.distillation import Distillation
from roll.distributed.strategy.megatron.inputs import ModelInput
from roll.distributed.strategy.megatron.vocab_parallel import (
    VocabShard,
    divergence_of_shares,
    token_scores,
    vocab_parallel_targets,
)
from roll.features.teachers.targets import TeacherTargets
from roll.models.megatron.model import TokenModel
from roll.types.batch import MicroBatch

# The loss of the head that predicts the token after the next one, in an update of a policy.


@dataclass(frozen=True)
class MtpInputs:
    """Inputs of the MTP head for a micro batch, and the slots that count: those for which the token after the next one
    is trained."""

    following: torch.Tensor  # int64 [rows, slots]: the token behind that of each slot, 0 where there is none
    slots: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def of(cls, model_input: ModelInput) -> MtpInputs:
        """Index arithmetic, as for the slots themselves: rows are not mixed, and no rank asks another."""
        batch, sources = model_input.batch, model_input.sources
        width = batch.input_ids.shape[1]
        ids, trained = batch.input_ids.reshape(-1), batch.response_mask.reshape(-1)
        is_there = [(sources >= 0) & (sources % width + ahead < width) for ahead in (1, 2)]
        following, target = (torch.where(real, sources + i, 0) for i, real in enumerate(is_there, 1))
        shape = model_input.input_ids.T.shape
        slots = (is_there[1] & trained[target]).nonzero()[:, 0]
        return cls(torch.where(is_there[0], ids[following], 0).view(shape).T.contiguous(), slots, ids[target[slots]])


def mtp_weight(
    factor: float, micro_batches: Sequence[MicroBatch], all_reduce_sum: Callable[[Sequence[float]], list[float]]
) -> float:
    """Factor of the sums of cross-entropies of an update: `factor` / its tokens, over the micro batches of all ranks.
    No position predicts the first two tokens of a row."""
    counted = sum(int(batch.response_mask[:, 2:].sum()) for batch in micro_batches)
    return factor / max(1, int(all_reduce_sum([counted])[0]))


@dataclass(frozen=True)
class HeadRequest:
    """Request to the last stage for the given slots: log-probs at a temperature, followed by the entropy and the
    divergence from a teacher if they are wanted; or values; or a teacher's targets."""

    slots: torch.Tensor
    targets: torch.Tensor
    temperature: float
    entropy: bool
    values: bool
    vocab_size: int
    logits_per_chunk: int
    teacher_targets: TeacherTargets | None = None
    distillation: Distillation | None = None
    mtp: MtpInputs | None = None

    @property
    def num_outputs(self) -> int:
        if self.distillation is not None:
            return 2 * self.distillation.top_k + 1
        return 1 + self.entropy + (self.teacher_targets is not None)


def answer(
    model: TokenModel, hidden: torch.Tensor, mtp_hidden: torch.Tensor | None, ask: HeadRequest
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [s, b, h] to [num_outputs, n]; with those of the MTP head, also the sum of its
    cross-entropies, over this rank's positions. Collective over the tensor-parallel ranks."""
    outputs = _outputs(model, hidden, ask)
    if mtp_hidden is None or ask.mtp is None:
        return outputs
    return outputs, _cross_entropy(model, mtp_hidden, ask, ask.mtp)


def _outputs(model: TokenModel, hidden: torch.Tensor, ask: HeadRequest) -> torch.Tensor:
    chosen = _chosen(model, hidden, ask.slots, ask.values)
    if ask.values:
        return model.output_layer(chosen)[None]
    share = _share(ask, ask.temperature)

    def scores(head: torch.Tensor) -> torch.Tensor:
        if ask.distillation is not None:
            return vocab_parallel_targets(chosen, head, ask.distillation, share)
        log_probs, entropy = token_scores(chosen, head, ask.targets, share)
        values = [log_probs, entropy] if ask.entropy else [log_probs]
        if ask.teacher_targets is not None:
            values.append(divergence_of_shares(chosen, head, ask.teacher_targets, share))
        return torch.stack(values)

    return model.with_head(scores)


def _cross_entropy(model: TokenModel, hidden: torch.Tensor, ask: HeadRequest, mtp: MtpInputs) -> torch.Tensor:
    assert model.prediction_head is not None
    chosen, shared = _chosen(model, hidden, mtp.slots), model.prediction_head.shared
    share = _share(ask, 1.0)
    return model.with_head(lambda head: -token_scores(chosen, shared(head), mtp.targets, share)[0].sum())


def _chosen(model: TokenModel, hidden: torch.Tensor, slots: torch.Tensor, values: bool = False) -> torch.Tensor:
    """The hidden states of these slots, for what is divided over the tensor-parallel ranks, or for values."""
    hidden = model.gathered(hidden, parallel_output=not values)
    if not values and not model.config.sequence_parallel:
        hidden = copy_to_tensor_model_parallel_region(hidden)
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, slots)


def _share(ask: HeadRequest, temperature: float) -> VocabShard:
    tensor_group: Any = parallel_state.get_tensor_model_parallel_group()
    return VocabShard(tensor_group, ask.vocab_size, temperature, ask.logits_per_chunk)
