"""Rows of a micro batch that begin alike as one tree, in the passes of a Hugging Face model."""

import logging
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from roll.errors import StrategyError
from roll.features.prefix_sharing.checks import obstacles
from roll.models.loading import LoadedModel
from roll.models.sequences.attention import set_text_attention
from roll.models.sequences.check import check_packs, of_all_ranks, off_beside_alike
from roll.models.sequences.forward_plan import ForwardPlan, ModelRank, WrappedPlan
from roll.models.sequences.layout import RowLayout, computed
from roll.models.sequences.packed_attention import use_packed_attention
from roll.models.sequences.tree import Tree, tree_or_pack
from roll.platforms.table import platform_of
from roll.types.batch import MicroBatch
from roll.types.forest import OF_EXACT_PASSES, ON_CPUS, ON_GPUS, CallCosts, forest_of
from roll.types.metrics import SharedWork

logger = logging.getLogger(__name__)


def plan(rank: ModelRank, inner: ForwardPlan) -> ForwardPlan:
    """Turns on trees of rows that begin alike, on all ranks or none. StrategyError if the role must and cannot."""
    model = rank.model
    attention = model.pretrained.config.get_text_config()._attn_implementation
    try:
        of_all_ranks(partial(_take_trees, rank))
        if not rank.is_exact:  # whose attention takes trees, and is checked on them
            with rank.scoring():
                check_packs(model, rank.device)
                check_trees(model, rank.device)
    except Exception as error:  # of code that came with the model, too: auto ends no run
        if rank.role.use_prefix_sharing == "on":
            raise
        why = str(error).partition("\n")[0]
        if rank.number == 0:
            logger.info("%s: use_prefix_sharing: auto is off here: %s", rank.name, why)
        if model.pretrained.config.get_text_config()._attn_implementation != attention:
            set_text_attention(model.pretrained, attention or "eager")
        return inner
    return TreePlan(inner, rank)


def _take_trees(rank: ModelRank) -> None:
    if rank.shows_pictures:
        raise tree_refusal("rows show pictures, which trees do not hold")
    for key, why in obstacles(rank.role, rank.learns).items():
        raise tree_refusal(f"{key}: {why}")
    if not (platform := platform_of(rank.device)).has_tree_attention:
        raise tree_refusal(f"it runs on {platform.name}, which has no kernels for it")
    if not rank.is_exact:
        use_packed_attention(rank.model.pretrained, is_shared=True)


def tree_refusal(why: str) -> StrategyError:
    return StrategyError(f"use_prefix_sharing does not work with this model: {why}. Set it to off")


def check_trees(model: LoadedModel, device: torch.device) -> None:
    """StrategyError if a row in a tree is another one than in a pack."""
    off = off_beside_alike(model, device, lambda ids, counts: tree_or_pack(ids, counts, least_saved=0))
    if off is not None:
        raise tree_refusal(f"a row is off by {off:.1%} beside others that begin alike")


class TreePlan(WrappedPlan):
    """Trees where they save tokens, and packs elsewhere."""

    def __init__(self, inner: ForwardPlan, rank: ModelRank):
        super().__init__(inner)
        self._by_routes, self._work = rank.role.router_replay.is_on, SharedWork()
        on_device = ON_CPUS if rank.device.type == "cpu" else ON_GPUS
        costs = OF_EXACT_PASSES if rank.is_exact else on_device
        self._costs: CallCosts | None = (
            costs if rank.role.use_prefix_sharing == "auto" else None
        )  # None: wherever they can

    @property
    def shares_prefixes(self) -> bool:
        return True

    def computed_tokens(self, keys: Sequence[np.ndarray]) -> int:
        return forest_of(keys, self._costs).num_tokens

    def take_shared_work(self) -> SharedWork:
        work, self._work = self._work, SharedWork()
        return work

    def scored(self, batch: MicroBatch) -> RowLayout:
        return self._laid_out(batch, computed(batch.lengths))

    def whole(self, batch: MicroBatch) -> RowLayout:
        return self._laid_out(batch, batch.lengths)

    def _laid_out(self, batch: MicroBatch, counts: torch.Tensor) -> RowLayout:
        layout = tree_or_pack(batch.input_ids, counts, batch.routes if self._by_routes else None, self._costs)
        num_tokens = int(counts.sum())
        is_tree = isinstance(layout, Tree)
        self._work = self._work.plus(layout.forest.shared_work() if is_tree else SharedWork(num_tokens, num_tokens))
        return layout
