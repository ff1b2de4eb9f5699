"""Experts of a mixture that are chosen once for a step (`router_replay`), in the passes of a Hugging Face model."""

import torch

from roll.models.routers import RouterReplay
from roll.models.sequences.forward_plan import ForwardPlan, ModelRank, WrappedPlan
from roll.models.sequences.layout import RowLayout
from roll.types.batch import MicroBatch


def plan(rank: ModelRank, inner: ForwardPlan) -> ForwardPlan:
    """Gives the routers of the model their choices. StrategyError for a model whose routers are not known."""
    return ReplayPlan(inner, RouterReplay(rank.model.pretrained), rank.role.router_replay.tells)


class ReplayPlan(WrappedPlan):
    def __init__(self, inner: ForwardPlan, replay: RouterReplay, tells: bool):
        super().__init__(inner)
        self._replay, self._tells = replay, tells

    def begin(self, batch: MicroBatch, layout: RowLayout) -> None:
        self._replay.give(None if batch.routes is None else layout.of_tokens(batch.routes))

    def routes(self, batch: MicroBatch, layout: RowLayout) -> torch.Tensor | None:
        return layout.of_rows(self._replay.reported(), batch.input_ids) if self._tells else None
