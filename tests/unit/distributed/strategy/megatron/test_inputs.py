"""Which slot of a rank stands for which token: small cases by hand, and all ranks together against the whole."""

import pytest
import torch

from roll.distributed.strategy.megatron.inputs import SlotLayout, _packed_params, prepare
from roll.types.batch import MicroBatch


def batch() -> MicroBatch:
    """Rows 11 12 13 14 15 (the last three sampled), 21 22 23 (the last sampled), 31 (alone)."""
    ids = torch.tensor([[11, 12, 13, 14, 15], [21, 22, 23, 0, 0], [31, 0, 0, 0, 0]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    zeros = torch.zeros(3, 5)
    return MicroBatch(ids, torch.tensor([5, 3, 1]), mask, torch.ones(3), zeros)


def test_padded_rows_predict_the_next_token_and_added_slots_nothing() -> None:
    layout = SlotLayout()
    given = prepare(batch(), layout, layout.extent(batch()))
    assert given.input_ids.tolist() == [[11, 12, 13, 14], [21, 22, 23, 0], [31, 0, 0, 0]]
    assert given.slots.tolist() == [1 * 3, 1 * 3 + 1, 2 * 3, 3 * 3]  # hidden states are [positions, rows]
    assert given.targets.tolist() == [13, 23, 14, 15]
    assert given.places.tolist() == [2, 7, 3, 4]
    assert given.packed is None
    for layout in (SlotLayout(), SlotLayout(packs=True)):
        rows, positions = layout.extent(batch())
        given = prepare(batch(), layout, layout.extent(batch()))
        wider = prepare(batch(), layout, (rows, positions + 4))
        assert wider.targets.tolist() == given.targets.tolist()
        assert wider.places.tolist() == given.places.tolist()
        assert wider.input_ids.numel() > given.input_ids.numel()


def test_packed_rows_follow_each_other_without_padding() -> None:
    layout = SlotLayout(packs=True)
    given = prepare(batch(), layout, layout.extent(batch()))
    assert given.input_ids.tolist() == [[11, 12, 13, 14, 21, 22, 31]]
    assert given.targets.tolist() == [13, 14, 15, 23]
    assert given.places.tolist() == [2, 3, 4, 7]
    assert given.packed is not None
    assert given.packed.cu_seqlens_q.tolist() == [0, 4, 6, 7]
    assert given.packed.max_seqlen_q == 4


@pytest.mark.parametrize("reads_on_host", [True, False])
def test_ends_of_rows_are_on_the_host_for_megatrons_own_layers_alone(reads_on_host: bool) -> None:
    """transformer-engine would take them for those of padded rows, on the device."""
    packed = _packed_params([4, 2, 1], torch.device("meta"), reads_on_host)
    assert packed.cu_seqlens_q.is_meta and packed.cu_seqlens_kv.is_meta
    ends = [packed.cu_seqlens_q_padded, packed.cu_seqlens_kv_padded]
    assert [end if end is None else end.tolist() for end in ends] == [[0, 4, 6, 7] if reads_on_host else None] * 2


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize(("context", "tensor"), [(2, 1), (2, 2), (4, 1), (1, 4)])
def test_every_place_is_asked_for_on_exactly_one_context_rank(context: int, tensor: int, packs: bool) -> None:
    whole = SlotLayout(packs=packs)
    want = prepare(batch(), whole, whole.extent(batch()))
    pairs: list[tuple[int, int]] = []
    for rank in range(context):
        layout = SlotLayout(tensor, context, rank, packs)
        extent = layout.extent(batch())
        given = prepare(batch(), layout, extent)
        assert given.input_ids.numel() * context == extent[0] * extent[1]
        assert given.input_ids.shape[1] % tensor == 0
        flat = given.input_ids.T.reshape(-1)
        assert torch.equal(flat[given.slots], batch().input_ids.reshape(-1)[given.places - 1])
        pairs += zip(given.places.tolist(), given.targets.tolist(), strict=True)
    assert sorted(pairs) == sorted(zip(want.places.tolist(), want.targets.tolist(), strict=True))
