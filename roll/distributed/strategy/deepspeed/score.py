"""`deepspeed_infer`: scoring with a model whose weights may be spread over the role's ranks (ZeRO-3)."""

from collections.abc import Sequence

import torch
from torch import nn

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext, State
from roll.distributed.strategy.data_parallel import RankGroups
from roll.distributed.strategy.deepspeed.rank import DeepSpeedRank, ScorerOffload, scoring_config
from roll.distributed.strategy.model_score import ModelScoreStrategy
from roll.types.batch import MicroBatch


class DeepSpeedScoreStrategy(ModelScoreStrategy):
    """Log-probs of the reference or of old weights, numbers of a reward model. With ZeRO-3 a model that fits on no
    single device can score."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        super().__init__(role, context)
        self.rank = DeepSpeedRank(role, context, scoring_config(role))

    def setup(self) -> None:
        self.rank.start()
        self._groups = RankGroups.made(self.role, self.context)
        self._model = self.rank.load_model()
        self._model.module.requires_grad_(False)
        engine = self.rank.initialize(self._model.module)
        engine.eval()
        self._offload: ScorerOffload = ScorerOffload(engine, self.rank.config)
        self._prepare()

    def _evened_out(self, micro_batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        return self.rank.evened_out(micro_batches)

    def _on_host(self, layer: nn.Module) -> dict[str, torch.Tensor]:
        with self.rank.gathered(list(layer.parameters(recurse=False)), modify=False):
            return super()._on_host(layer)

    def offload_states(self, states: frozenset[State]) -> None:
        """Moves states to host memory. On a CPU everything is there already."""
        if State.WEIGHTS in states and self.context.device.type != "cpu":
            self._offload.to_host()
            self.rank.platform.empty_cache()

    def load_states(self, states: frozenset[State]) -> None:
        if State.WEIGHTS in states and self.context.device.type != "cpu":
            self._offload.to_device()

    def shutdown(self) -> None:
        self.rank.stop()
        self._model = None
