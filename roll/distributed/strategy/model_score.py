"""Scoring with a Hugging Face model in torch: what all strategies but Megatron's share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from roll.algorithms.loss import Loss
from roll.distributed.strategy.base import RankContext, ScoreStrategy
from roll.errors import StrategyError
from roll.models.hf import SequenceModel, TokenLogProbModel, TokenValueModel
from roll.models.loading import LoadedModel
from roll.types.batch import MicroBatch, TokenOutputs


class ModelScoreStrategy(ScoreStrategy):
    """Log-probs of a policy, values of a critic, numbers of a reward model. `setup` of the subclass loads the model."""

    context: RankContext
    _model: LoadedModel | None = None

    @property
    def model(self) -> LoadedModel:
        assert self._model is not None, "setup() comes first"
        return self._model

    def base_log_probs(self, micro_batches: Sequence[MicroBatch], temperature: float) -> list[TokenOutputs]:
        if self.model.adapters is None:
            return super().base_log_probs(micro_batches, temperature)
        with self.model.adapters.off():
            return self.log_probs(micro_batches, temperature)

    @torch.no_grad()
    def log_probs(
        self, micro_batches: Sequence[MicroBatch], temperature: float, entropy: bool = False
    ) -> list[TokenOutputs]:
        self._check_policy()
        outputs = []
        with self._ready_to_score(), self._without_dropout():
            for batch in self._evened_out(micro_batches):
                log_probs, entropies = self.model.module(*self._inputs(batch), temperature, entropy)
                outputs.append(
                    TokenOutputs(log_probs=log_probs.cpu(), entropy=None if entropies is None else entropies.cpu())
                )
        return outputs[: len(micro_batches)]

    @torch.no_grad()
    def values(self, micro_batches: Sequence[MicroBatch]) -> list[TokenOutputs]:
        self._check_critic()
        with self._ready_to_score(), self._without_dropout():
            batches = self._evened_out(micro_batches)
            outputs = [TokenOutputs(values=self.model.module(*self._inputs(batch)).cpu()) for batch in batches]
        return outputs[: len(micro_batches)]

    @torch.no_grad()
    def row_scores(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        if not isinstance(self.model.module, SequenceModel):
            raise StrategyError(f"{self.context.role} has no sequence-classification head and gives rows no numbers")
        device = self.context.device
        with self._ready_to_score():
            batches = self._evened_out(micro_batches)
            outputs = [self.model.module(b.input_ids.to(device), b.lengths.to(device)).cpu() for b in batches]
        return outputs[: len(micro_batches)]

    def _outputs(self, forward: Callable[..., Any], batch: MicroBatch, loss: Loss, temperature: float) -> TokenOutputs:
        """What a loss needs, with gradient. `forward`: the model, or what an engine put around it."""
        if "values" in loss.needs:
            self._check_critic()
            return TokenOutputs(values=forward(batch.input_ids, batch.response_mask))
        self._check_policy()
        log_probs, entropy = forward(batch.input_ids, batch.response_mask, temperature, "entropy" in loss.needs)
        return TokenOutputs(log_probs=log_probs, entropy=entropy)

    def _evened_out(self, micro_batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """These, and behind them the empty ones that ranks need whose forward passes must be equal in number."""
        return micro_batches

    def _ready_to_score(self) -> AbstractContextManager[None]:
        """Around passes without gradient."""
        return nullcontext()

    def _without_dropout(self) -> AbstractContextManager[None]:
        adapters = self.model.adapters
        return nullcontext() if adapters is None else adapters.without_dropout()

    def _inputs(self, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        device = self.context.device
        return batch.input_ids.to(device), batch.response_mask.to(device)

    def _check_policy(self) -> None:
        if not isinstance(self.model.module, TokenLogProbModel):
            raise StrategyError(f"{self.context.role} has a {self.context.head} head and gives no log-probs")

    def _check_critic(self) -> None:
        if not isinstance(self.model.module, TokenValueModel):
            raise StrategyError(f"{self.context.role} has no value head; values come from the critic role")


def empty_micro_batch() -> MicroBatch:
    """A row with nothing to score: it keeps a sharded model's forward passes in step with the other ranks'."""
    return MicroBatch(
        input_ids=torch.zeros(1, 2, dtype=torch.int64),
        lengths=torch.tensor([2]),
        response_mask=torch.zeros(1, 2, dtype=torch.bool),
        loss_weights=torch.zeros(1),
        rollout_log_probs=torch.zeros(1, 2),
    )
