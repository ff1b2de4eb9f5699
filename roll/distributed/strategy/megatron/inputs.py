"""A padded micro batch as one rank of a Megatron model takes it: index arithmetic, no communication.

Every slot of the rank's hidden states stands for one (row, position). Position p sees tokens 0..p and predicts token p
+ 1, so the last token of a row needs no slot. With packing, rows follow each other without padding; with context
parallel, each row (or the padded width) is shared zig-zag; sequence parallel wants the number of slots to be a multiple
of its ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams

from roll.models.megatron.layers import zigzag
from roll.types.batch import MicroBatch


@dataclass(frozen=True)
class SlotLayout:
    """How this rank shares positions with others. `packs`: rows one after the other instead of padded. `reads_on_host`:
    the layers are Megatron's own, whose rotary embedding reads on the host where rows of a pack end."""

    tensor: int = 1  # ranks of sequence parallel, 1 without
    context: int = 1
    context_rank: int = 0
    packs: bool = False
    reads_on_host: bool = True

    @property
    def row_multiple(self) -> int:
        """Number that the width of a shared row must be a multiple of."""
        return 2 * self.context if self.context > 1 else 1

    def extent(self, batch: MicroBatch) -> tuple[int, int]:
        """(rows, positions) this micro batch needs, over all context ranks; a pack is one row."""
        if self.packs:
            return 1, _up(sum(self._row_lengths(batch)), self.row_multiple * self.tensor)
        return len(batch), _up(max(batch.input_ids.shape[1] - 1, 1), self.row_multiple * self.tensor)

    def _row_lengths(self, batch: MicroBatch) -> list[int]:
        return [_up(max(int(length) - 1, 1), self.row_multiple) for length in batch.lengths]


@dataclass(frozen=True)
class ModelInput:
    """Input of the model, and which of its slots give an output."""

    batch: MicroBatch
    input_ids: torch.Tensor  # [rows, slots]
    packed: PackedSeqParams | None
    slots: torch.Tensor  # int64 [n]: flat positions in hidden states [slots, rows, h]
    targets: torch.Tensor  # int64 [n]: the token that each predicts
    places: torch.Tensor  # int64 [n]: flat positions of those tokens in [B, T]
    padding: torch.Tensor  # bool [rows, slots]: no tokens that predict one; all, where nothing counts
    counts: bool  # False: only there to keep ranks in step
    sources: torch.Tensor  # int64 [slots * rows]: flat positions in [B, T] of their tokens, -1 where padding is

    def routes(self) -> torch.Tensor | None:
        """The experts that the tokens of the slots go to, [slots * rows, layers, k]; -1 where a router chooses."""
        if self.batch.routes is None:
            return None
        routes = self.batch.routes.flatten(0, 1)[self.sources.clamp(min=0)].long()
        return torch.where(self.sources[:, None, None] >= 0, routes, -1)


def prepare(batch: MicroBatch, layout: SlotLayout, extent: tuple[int, int], counts: bool = True) -> ModelInput:
    """`extent` is at least `layout.extent(batch)`, a multiple of the same, and equal on all ranks of a pipeline whose
    shapes must not vary."""
    rows, positions, packed = (_packed_slots if layout.packs else _padded_slots)(batch, layout, extent)
    width = batch.input_ids.shape[1]
    flat_ids, flat_mask = batch.input_ids.reshape(-1), batch.response_mask.reshape(-1)
    rows, positions = rows.to(flat_ids.device), positions.to(flat_ids.device)

    real = (rows < len(batch)) & (positions < width)
    here = torch.where(real, rows * width + positions, 0)
    ids = torch.where(real, flat_ids[here], 0)
    follows = real & (positions + 1 < width)
    next_place = torch.where(follows, here + 1, 0)
    slots = (follows & flat_mask[next_place]).nonzero()[:, 0]
    places = next_place[slots]
    shape = (-1, 1 if layout.packs else extent[0])
    lengths = (batch.lengths - 1).clamp(min=1)
    is_token = (rows < len(batch)) & (positions < lengths[rows.clamp(max=len(batch) - 1)])
    padding = ~is_token if counts else torch.ones_like(is_token)
    return ModelInput(
        batch,
        ids.view(shape).T.contiguous(),
        packed,
        slots,
        flat_ids[places],
        places,
        padding.view(shape).T.contiguous(),
        counts,
        torch.where(is_token, here, -1),
    )


def _padded_slots(
    batch: MicroBatch, layout: SlotLayout, extent: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, None]:
    num_rows, width = extent
    mine = zigzag(width, layout.context, layout.context_rank) if layout.context > 1 else torch.arange(width)
    return torch.arange(num_rows).repeat(len(mine)), mine.repeat_interleave(num_rows), None


def _packed_slots(
    batch: MicroBatch, layout: SlotLayout, extent: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, PackedSeqParams]:
    lengths = layout._row_lengths(batch)
    lengths[-1] += extent[1] - sum(lengths)  # padding behind the last row, which sees nothing of it
    rows, positions = [], []
    for row, length in enumerate(lengths):
        mine = zigzag(length, layout.context, layout.context_rank) if layout.context > 1 else torch.arange(length)
        rows.append(torch.full_like(mine, row))
        positions.append(mine)
    return torch.cat(rows), torch.cat(positions), _packed_params(lengths, batch.input_ids.device, layout.reads_on_host)


def _packed_params(lengths: Sequence[int], device: torch.device, reads_on_host: bool) -> PackedSeqParams:
    """`reads_on_host`: the ends of rows are there too, where Megatron (0.16) looks for those of padded rows first.
    From the device its rotary embedding would fetch them twice in every layer, and wait for all that runs there."""
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    there, here, longest = ends.to(device), ends if reads_on_host else None, max(lengths)
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=there,
        cu_seqlens_kv=there,
        cu_seqlens_q_padded=here,  # type: ignore[arg-type]
        cu_seqlens_kv_padded=here,  # type: ignore[arg-type]
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
