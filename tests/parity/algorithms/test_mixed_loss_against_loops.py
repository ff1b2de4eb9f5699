"""The loss of an update with an expert's rows against a loop over single tokens in float64:
its value, its gradient, its metrics, however rows are cut into micro batches; and that the policy's rows know nothing
of the expert's. Not covered: which rows an update has (tests/unit/features/expert_rows/test_mix.py)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from roll.algorithms.loss import Aggregation, LossAggMode
from roll.algorithms.policy_loss import ExpertLoss, MixedLoss, PolicyLoss, TokenWeights
from roll.types.batch import LossScale, Rows, TokenOutputs, TrainBatch
from roll.types.collate import pad
from roll.types.columns import token_indices
from roll.types.metrics import MetricSums
from tests.unit.algorithms.rows import apply_loss, full_scale, padded_like, random_samples, random_train_batch

EXPERT = [3, 0, 1, 4]  # tokens to learn of each row
MODES: tuple[LossAggMode, ...] = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")
WHOLE, CUT = [np.arange(4)], [np.array([2, 0]), np.array([1]), np.array([3])]


@dataclass(frozen=True)
class Update:
    """Rows of both kinds, and log-probs of their tokens that take a gradient."""

    batch: TrainBatch
    expert: Rows
    own: torch.Tensor
    shown: torch.Tensor

    @property
    def scale(self) -> LossScale:
        own = full_scale(self.batch.samples)
        return LossScale(own.num_tokens, own.num_samples, LossScale(sum(EXPERT), sum(n > 0 for n in EXPERT)))

    def run(self, loss: MixedLoss, parts: list[np.ndarray]) -> tuple[float, MetricSums]:
        total, metrics = apply_loss(loss, self.batch, {"log_probs": self.own}, WHOLE, scale=self.scale)
        for rows in parts:
            micro, tokens = pad(self.expert, rows), token_indices(self.expert.lengths, rows)
            value, sums = loss(TokenOutputs(log_probs=padded_like(micro, self.shown, tokens)), micro, self.scale)
            value.backward()
            total += value.item()
            metrics.merge([sums])
        return total, metrics


def update(seed: int = 3) -> Update:
    rng = np.random.default_rng(seed)
    batch = random_train_batch(rng, random_samples(rng, [3, 2, 0, 5]))
    masks = [[False] * 2 + [True] * count for count in EXPERT]
    expert = Rows.of([[7] * len(mask) for mask in masks], masks)
    own, shown = (torch.from_numpy(np.log(rng.uniform(0.05, 0.95, n))) for n in (batch.samples.num_tokens, 16))
    return Update(batch, expert, own.requires_grad_(), shown.requires_grad_())


def loop(given: Update, mode: LossAggMode, weighs: TokenWeights) -> tuple[float, np.ndarray]:
    """The expert's loss and its gradient by the log-prob of each token."""
    gradient, total, at = np.zeros(16), 0.0, 0
    for count in EXPERT:
        at += 2
        for place in range(at, at + count):
            log_prob = float(given.shown[place].detach())
            p = np.exp(log_prob)
            weight = p * (1 - p) if weighs == "uncertain" else 1.0
            if mode == "token-mean":
                weight /= sum(EXPERT)
            elif mode == "seq-mean-token-mean":
                weight /= 3 * count
            else:
                weight /= 3
            total += -log_prob * weight
            gradient[place] = -weight
        at += count
    return total, gradient


@pytest.mark.parametrize("weighs", ["none", "uncertain"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("parts", [WHOLE, CUT], ids=["whole", "cut"])
def test_an_update_is_the_policys_loss_and_the_experts_in_their_proportions(
    parts: list[np.ndarray], mode: LossAggMode, weighs: TokenWeights
) -> None:
    given, alone, mu = update(), update(), 0.3
    policy = PolicyLoss(aggregation=Aggregation("seq-mean-token-mean"), kl_loss_coef=0.2)
    total, metrics = given.run(MixedLoss(policy, ExpertLoss(weighs, Aggregation(mode)), mu), parts)

    plain, others = apply_loss(policy, alone.batch, {"log_probs": alone.own}, WHOLE)
    of_expert, gradient = loop(given, mode, weighs)
    assert total == pytest.approx((1 - mu) * plain + mu * of_expert, rel=1e-6)
    assert given.shown.grad is not None and given.own.grad is not None and alone.own.grad is not None
    np.testing.assert_allclose(given.shown.grad.numpy(), mu * gradient, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(given.own.grad.numpy(), (1 - mu) * alone.own.grad.numpy(), rtol=1e-6, atol=1e-12)

    found = metrics.result()
    assert {name: value for name, value in found.items() if not name.startswith("expert_")} == others.result()
    assert found["expert_loss"] == pytest.approx(of_expert, rel=1e-6)
    learnt = given.expert.response_mask
    assert found["expert_nll_mean"] == pytest.approx(-given.shown.detach().numpy()[learnt].mean(), rel=1e-6)
    assert ("expert_token_weight_mean" in found) == (weighs == "uncertain")


def test_the_weight_is_the_experts_share() -> None:
    given = update()
    total, _ = given.run(MixedLoss(PolicyLoss(), ExpertLoss(), 1.0), WHOLE)
    assert total == pytest.approx(loop(given, "token-mean", "none")[0], rel=1e-6)
    assert given.own.grad is not None and not given.own.grad.any()
    given, alone = update(), update()
    given.run(MixedLoss(PolicyLoss(), ExpertLoss(), 0.0), WHOLE)
    apply_loss(PolicyLoss(), alone.batch, {"log_probs": alone.own}, WHOLE)
    assert given.own.grad is not None and alone.own.grad is not None and given.shown.grad is not None
    assert torch.equal(given.own.grad, alone.own.grad) and not given.shown.grad.any()
    row = Rows.of([[5, 6]], [[False, False]])
    loss = MixedLoss(PolicyLoss(), ExpertLoss("uncertain"), 0.5)
    outputs = TokenOutputs(log_probs=torch.zeros(1, 2, requires_grad=True))
    value, metrics = loss(outputs, pad(row, np.array([0])), LossScale(4, 2, LossScale(3, 1)))
    assert value.item() == 0 and metrics.result() == {}
