"""`megatron_infer`: scoring with a model that is divided among the role's ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from roll.algorithms.distillation import Distillation
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext, ScoreStrategy, State
from roll.distributed.strategy.host_copies import HostCopies, tensors_of
from roll.distributed.strategy.megatron.rank import MegatronRank
from roll.types.batch import MicroBatch, TokenOutputs

if TYPE_CHECKING:
    from roll.distributed.strategy.megatron.passes import Passes
    from roll.distributed.strategy.megatron.rank import Model


class MegatronScoreStrategy(ScoreStrategy):
    """Log-probs of the reference or of old weights, values of a critic."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        self.role, self.context = role, context
        self.rank = MegatronRank(role, context)
        self.dp_rank, self.dp_size = self.rank.dp_rank, self.rank.dp_size
        self._model: Model | None = None
        self._copies = HostCopies(frozen=True)

    def setup(self) -> None:
        self.rank.start()
        from roll.distributed.strategy.megatron.passes import Passes
        from roll.distributed.strategy.megatron.rank import for_scoring, load_model

        model = self._model = load_model(self.rank)
        self._passes: Passes = Passes(
            for_scoring(model), model.config, model.shapes.vocab_size, self.context.device, self.role
        )

    def log_probs(
        self, micro_batches: Sequence[MicroBatch], temperature: float, entropy: bool = False
    ) -> list[TokenOutputs]:
        self.rank.check_head(values=False)
        return self._passes.score(micro_batches, temperature, entropy)

    def values(self, micro_batches: Sequence[MicroBatch]) -> list[TokenOutputs]:
        self.rank.check_head(values=True)
        return self._passes.score(micro_batches, 1.0, values=True)

    def teacher_targets(self, micro_batches: Sequence[MicroBatch], distillation: Distillation) -> list[torch.Tensor]:
        self.rank.check_head(values=False)
        return self._passes.teacher_targets(micro_batches, distillation)

    def offload_states(self, states: frozenset[State]) -> None:
        if State.WEIGHTS in states and self._model is not None and self.context.device.type != "cpu":
            self._copies.take(tensor for chunk in self._model.chunks for tensor in tensors_of(chunk))
            self.rank.platform.empty_cache()

    def load_states(self, states: frozenset[State]) -> None:
        if State.WEIGHTS in states and self._model is not None:
            self._copies.bring_back(tensor for chunk in self._model.chunks for tensor in tensors_of(chunk))

    def shutdown(self) -> None:
        self._model = None
        self.rank.stop()
