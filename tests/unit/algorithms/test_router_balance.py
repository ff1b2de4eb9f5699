"""The load-balancing loss against a loop over tokens and experts."""

import pytest
import torch

from roll.algorithms.moe_aux_loss import BalancedLoss, layer_balance, num_routed_tokens, with_balance
from roll.models.hf import layer_balances
from roll.types.batch import LossScale, TokenOutputs
from tests.parity.strategies.reference import BentLoss, rows


def test_it_is_n_times_the_sum_over_experts_of_share_times_mean_probability() -> None:
    torch.manual_seed(0)
    logits, counted = torch.randn(7, 4), torch.tensor([1, 1, 0, 1, 1, 0, 1], dtype=torch.bool)
    probabilities = logits.softmax(-1)[counted].tolist()
    share, mean = [0.0] * 4, [0.0] * 4
    for token in probabilities:
        for expert in sorted(range(4), key=lambda e: -token[e])[:2]:
            share[expert] += 1 / (2 * len(probabilities))
        for expert in range(4):
            mean[expert] += token[expert] / len(probabilities)
    want = len(probabilities) * 4 * sum(f * p for f, p in zip(share, mean, strict=True))
    found = layer_balances([logits, logits], 2, counted.nonzero()[:, 0])
    assert found.tolist() == pytest.approx([want, want], rel=1e-6)
    assert layer_balance(torch.tensor([2.0, 0.0]), torch.tensor([[0.8, 0.2], [0.6, 0.4]])).item() == pytest.approx(2.8)


def test_even_routers_give_one_per_token_and_no_token_gives_nothing() -> None:
    even = torch.full((6, 3), 1 / 3)
    assert layer_balance(torch.tensor([4.0, 4.0, 4.0]), even).item() == pytest.approx(6)
    assert layer_balance(torch.zeros(3), even[:0]).item() == 0


def test_the_loss_beside_it_stays_and_weights_are_those_of_the_whole_update() -> None:
    """Two micro batches on this rank, and as many tokens again on another."""
    batches = rows(2)
    own = sum(num_routed_tokens(batch.lengths) for batch in batches)
    loss = with_balance(BentLoss(), 0.5, batches, lambda values: [2 * value for value in values])
    assert isinstance(loss, BalancedLoss) and loss.num_tokens == 2 * own and loss.needs == {"log_probs", "balance"}
    batch, scale = batches[0], LossScale(10, 2)
    log_probs = torch.full(batch.input_ids.shape, -5.0, requires_grad=True)
    balance = torch.tensor([3.0, 5.0], requires_grad=True)
    total, sums = loss(TokenOutputs(log_probs=log_probs, balance=balance), batch, scale)
    alone, _ = BentLoss()(TokenOutputs(log_probs=log_probs), batch, scale)
    assert total.item() == pytest.approx(alone.item() + 0.5 * 8 / (2 * own))
    assert sums.means["moe_aux_loss"] == (torch.tensor(4.0), num_routed_tokens(batch.lengths))
    plain = BentLoss()
    assert with_balance(plain, None, batches, list) is plain and with_balance(plain, 0.0, batches, list) is plain
