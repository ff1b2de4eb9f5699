"""Rows that show pictures, in the passes of a Hugging Face model."""

from dataclasses import replace

from roll.configs.tables.sight import VisionModel
from roll.datasets.pictures.decode import all_decoded
from roll.errors import PictureError, StrategyError
from roll.models.sequences.attention import refusal
from roll.models.sequences.forward_plan import ForwardPlan, ModelRank, WrappedPlan
from roll.models.sequences.layout import Padded, RowLayout
from roll.models.sequences.pack import Pack
from roll.models.vision.inputs import PictureInputs
from roll.types.batch import MicroBatch


def plan(rank: ModelRank, inner: ForwardPlan) -> ForwardPlan:
    """Has a model that sees shown the pictures of its rows. StrategyError for one that packs cannot show them."""
    vision = rank.model.vision
    if vision is None:
        return inner
    if rank.role.packs_rows and vision.facts.looks_both_ways:
        raise refusal("rows show pictures, whose tokens attend to each other both ways")
    return PicturePlan(inner, vision, rank.name)


class PicturePlan(WrappedPlan):
    def __init__(self, inner: ForwardPlan, vision: VisionModel, role: str):
        super().__init__(inner)
        self._vision, self._role = vision, role

    def scored(self, batch: MicroBatch) -> RowLayout:
        text, shown = self._shown(batch)
        return _showing(self.inner.scored(text), shown)

    def whole(self, batch: MicroBatch) -> RowLayout | None:
        text, shown = self._shown(batch)
        layout = self.inner.whole(text)
        return None if layout is None else _showing(layout, shown)

    def _shown(self, batch: MicroBatch) -> tuple[MicroBatch, PictureInputs]:
        """The text of the batch, and its pictures with their pixels. Those of rows that were there before the run are
        read now, for one micro batch at a time. StrategyError for a picture that cannot be."""
        media, ids = batch.media or ((),) * len(batch), batch.input_ids
        try:
            decoded = all_decoded(media)
        except PictureError as error:
            raise StrategyError(f"{self._role}: {error}") from error
        shown = PictureInputs.of(decoded, ids.shape[1], self._vision, ids.device)
        return replace(batch, input_ids=shown.cleaned(ids, self._vision), media=None), shown


def _showing(layout: RowLayout, shown: PictureInputs) -> RowLayout:
    assert isinstance(layout, Padded | Pack)
    return replace(layout, pictures=shown)
