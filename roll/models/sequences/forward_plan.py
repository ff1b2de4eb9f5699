"""How micro batches go through a Hugging Face model: how their rows are laid out, and what comes with a pass.

A feature wraps the plan that there is without it: `roll.features.NAME.forward` has `plan(rank, inner)`, which prepares
the model and returns a plan, for the rooms that `IN_RANKS` names for a rank.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import torch

from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.features import IN_RANKS
from roll.errors import StrategyError
from roll.models.loading import LoadedModel
from roll.models.sequences.check import check_packs
from roll.models.sequences.layout import Padded, RowLayout
from roll.models.sequences.pack import Pack
from roll.models.sequences.packed_attention import use_packed_attention
from roll.models.sequences.ranks import SequenceRanks
from roll.types.batch import MicroBatch
from roll.types.metrics import SharedWork


@dataclass(frozen=True)
class ModelRank:
    """A rank with the loaded model of a role. `name`: of the role, for messages; `scoring`: the context of passes
    without gradient."""

    role: WorkerConfig
    name: str
    number: int
    device: torch.device
    model: LoadedModel
    scoring: Callable[[], AbstractContextManager[None]]
    learns: bool
    shows_pictures: bool  # rows of the run may show some beside their tokens
    is_exact: bool  # log-probs of a token are the same bits in every pass
    sequence_ranks: SequenceRanks | None  # those that share every sequence


class ForwardPlan:
    """The plan without features: rows are padded, or packs, which ranks may share."""

    def __init__(self, rank: ModelRank):
        self._name, self._packs, self._ranks = rank.name, rank.role.packs_rows, rank.sequence_ranks
        self._sees = rank.model.vision is not None

    @property
    def shares_prefixes(self) -> bool:
        """True if rows of a micro batch that begin alike are computed as a tree."""
        return False

    def computed_tokens(self, keys: Sequence[np.ndarray]) -> int:
        """Number of tokens that a micro batch of these rows computes (`token_keys` of each)."""
        return sum(map(len, keys))

    def take_shared_work(self) -> SharedWork:
        """Work on rows that begin alike since the last call."""
        return SharedWork()

    def scored(self, batch: MicroBatch) -> RowLayout:
        """How the tokens of the batch, which is on the device, are computed: all but each row's last."""
        self._check_text(batch)
        if self._packs:
            return Pack.scored(batch.input_ids, batch.lengths, self._ranks)
        return Padded(batch.input_ids, batch.lengths)

    def whole(self, batch: MicroBatch) -> RowLayout | None:
        """The same of all tokens; None: padded, with an attention mask, as a model that looks both ways needs it."""
        self._check_text(batch)
        if self._packs:
            pack = Pack.of(batch.input_ids, batch.lengths)
            return pack if self._ranks is None else pack.shared(self._ranks)
        return Padded(batch.input_ids, batch.lengths, are_whole=True) if self._sees else None

    def _check_text(self, batch: MicroBatch) -> None:
        if any(batch.media or ()):
            raise StrategyError(f"{self._name}: these rows show pictures, and its model takes text alone")

    def begin(self, batch: MicroBatch, layout: RowLayout) -> None:
        """Comes before each pass of a policy."""

    def routes(self, batch: MicroBatch, layout: RowLayout) -> torch.Tensor | None:
        """Return the experts that the last pass chose, [B, T, layers, k] on the CPU, if they are wanted."""
        return None


class WrappedPlan(ForwardPlan):
    """A plan that is another one but for what a feature overrides."""

    def __init__(self, inner: ForwardPlan):
        self.inner = inner

    @property
    def shares_prefixes(self) -> bool:
        return self.inner.shares_prefixes

    def computed_tokens(self, keys: Sequence[np.ndarray]) -> int:
        return self.inner.computed_tokens(keys)

    def take_shared_work(self) -> SharedWork:
        return self.inner.take_shared_work()

    def scored(self, batch: MicroBatch) -> RowLayout:
        return self.inner.scored(batch)

    def whole(self, batch: MicroBatch) -> RowLayout | None:
        return self.inner.whole(batch)

    def begin(self, batch: MicroBatch, layout: RowLayout) -> None:
        self.inner.begin(batch, layout)

    def routes(self, batch: MicroBatch, layout: RowLayout) -> torch.Tensor | None:
        return self.inner.routes(batch, layout)


def forward_plan(rank: ModelRank) -> ForwardPlan:
    """Makes the model take the rows of its role, and returns how. Collective."""
    if rank.role.packs_rows and not rank.is_exact:
        use_packed_attention(rank.model.pretrained, rank.sequence_ranks is not None)
        with rank.scoring():
            check_packs(rank.model, rank.device, rank.sequence_ranks)
    plan = ForwardPlan(rank)
    for name, is_wanted in IN_RANKS.items():
        if is_wanted(rank):
            plan = import_module(f"roll.features.{name}.forward").plan(rank, plan)
    return plan
