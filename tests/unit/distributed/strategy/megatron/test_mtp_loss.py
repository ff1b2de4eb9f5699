"""What the head for the token after the next one takes and answers: small cases by hand, and ranks against the
whole."""

import pytest
import torch

from roll.distributed.strategy.megatron.inputs import SlotLayout, prepare
from roll.distributed.strategy.megatron.last_stage import MtpInputs, mtp_weight
from roll.types.batch import MicroBatch


def batch() -> MicroBatch:
    """Rows 11 12 13 14 15 (the last three trained), 21 22 23 (the last two), 31 (alone)."""
    ids = torch.tensor([[11, 12, 13, 14, 15], [21, 22, 23, 0, 0], [31, 0, 0, 0, 0]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    return MicroBatch(ids, torch.tensor([5, 3, 1]), mask, torch.ones(3), torch.zeros(3, 5))


def further(layout: SlotLayout) -> MtpInputs:
    return MtpInputs.of(prepare(batch(), layout, layout.extent(batch())))


def test_targets_of_heads_are_the_next_tokens_of_the_same_row() -> None:
    found = further(SlotLayout())
    assert found.following.tolist() == [[12, 13, 14, 15], [22, 23, 0, 0], [0, 0, 0, 0]]
    assert found.slots.tolist() == [0, 1, 1 * 3, 2 * 3]  # hidden states are [positions, rows]
    assert found.targets.tolist() == [13, 23, 14, 15]
    found = further(SlotLayout(packs=True))
    assert found.following.tolist() == [[12, 13, 14, 15, 22, 23, 0]]
    assert found.slots.tolist() == [0, 1, 2, 4]
    assert found.targets.tolist() == [13, 14, 15, 23]
    both = batch()
    only = MicroBatch(both.input_ids[:1], both.lengths[:1], both.response_mask[:1], torch.ones(1), torch.zeros(1, 5))
    found = MtpInputs.of(prepare(only, SlotLayout(), SlotLayout().extent(only)))
    assert (found.slots.tolist(), found.targets.tolist()) == ([0, 1, 2], [13, 14, 15])


@pytest.mark.parametrize("packs", [False, True])
def test_ranks_that_share_rows_have_each_target_once(packs: bool) -> None:
    want = further(SlotLayout(packs=packs))
    parts = [further(SlotLayout(2, 2, rank, packs)) for rank in range(2)]
    assert sorted(t for part in parts for t in part.targets.tolist()) == sorted(want.targets.tolist())


def test_a_mean_counts_tokens_that_some_position_predicts_on_all_ranks() -> None:
    """The second token of a row has none; another rank has as many again."""
    assert mtp_weight(0.5, [batch()], lambda values: [2 * value for value in values]) == 0.5 / (2 * 4)
    assert mtp_weight(0.5, [], lambda values: [0.0]) == 0.5
