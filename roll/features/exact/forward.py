"""Log-probs of a token that are the same bits in every pass, in the passes of a Hugging Face model."""

from roll.models.exact.attention import exact_refusal
from roll.models.exact.check import check_exact, make_exact
from roll.models.exact.rows import ExactRows
from roll.models.sequences.forward_plan import ForwardPlan, ModelRank, WrappedPlan
from roll.models.sequences.layout import RowLayout
from roll.models.sequences.pack import Pack
from roll.models.sequences.tree import Tree
from roll.types.batch import MicroBatch
from roll.types.metrics import SharedWork


def plan(rank: ModelRank, inner: ForwardPlan) -> ForwardPlan:
    """Makes the model exact. StrategyError if it, or this machine, cannot be."""
    if rank.shows_pictures:
        raise exact_refusal("rows show pictures")
    make_exact(rank.model, rank.device)
    with rank.scoring():
        check_exact(rank.model, rank.device)
    return ExactPlan(inner)


class ExactPlan(WrappedPlan):
    def scored(self, batch: MicroBatch) -> RowLayout:
        rows = self.inner.scored(batch)
        return ExactRows.of(rows if isinstance(rows, Pack | Tree) else Pack.scored(batch.input_ids, batch.lengths))

    def take_shared_work(self) -> SharedWork:
        """Work without saved pairs: exact attention takes every row as it is."""
        return self.inner.take_shared_work()._replace(saved_pairs=0)
