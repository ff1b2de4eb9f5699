"""`fsdp2_infer`: scoring with a model whose weights are spread over the role's ranks."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext, State
from roll.distributed.strategy.data_parallel import RankGroups, evened_out
from roll.distributed.strategy.fsdp2.rank import Fsdp2Rank
from roll.distributed.strategy.fsdp2.sharding import whole_weight
from roll.distributed.strategy.model_score import ModelScoreStrategy
from roll.models.loading import DTYPES
from roll.types.batch import MicroBatch


class Fsdp2ScoreStrategy(ModelScoreStrategy):
    """Log-probs of the reference or of old weights, values of a critic, numbers of a reward model."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        super().__init__(role, context)
        self.rank = Fsdp2Rank(role, context)

    def setup(self) -> None:
        self.rank.start()
        self._groups = RankGroups.made(self.role, self.context)
        self._model = self.rank.load_model(DTYPES[self.role.model_args.dtype])
        self._model.module.requires_grad_(False).eval()
        with self.rank.unsharded_weights():
            pass  # they wait where they belong
        self._prepare()

    def _evened_out(self, micro_batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        return evened_out(micro_batches, self.context)

    def _ready_to_score(self) -> AbstractContextManager[None]:
        return self.rank.unsharded_weights()

    def _on_host(self, layer: nn.Module) -> dict[str, torch.Tensor]:
        self.rank.shards()  # none of them gathered
        parameters = layer.named_parameters(recurse=False)
        return {name: whole_weight(shard, shard.dtype).to("cpu", copy=True) for name, shard in parameters}

    def offload_states(self, states: frozenset[State]) -> None:
        """Moves states to host memory. On a CPU everything is there already."""
        if State.WEIGHTS in states and self.context.device.type != "cpu":
            self.rank.offload_weights()
            self.rank.platform.empty_cache()

    def load_states(self, states: frozenset[State]) -> None:
        if State.WEIGHTS in states and self.context.device.type != "cpu":
            self.rank.load_weights()

    def shutdown(self) -> None:
        self.rank.stop()
        self._model = None
