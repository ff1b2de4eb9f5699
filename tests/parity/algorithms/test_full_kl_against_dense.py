"""`kl_loss_type: full`: value and gradient of the policy loss, whose KL comes chunk by chunk from hidden states,
against torch's kl_div of whole logits in float64; and that credit and lesson keep to the same tokens.

Not covered: strategies (strategies/test_teacher_targets.py).
"""

import numpy as np
import pytest
import torch
from torch.nn import functional

from roll.algorithms.credit import CreditSettings, assign_credit
from roll.algorithms.distillation import Distillation, Divergence
from roll.algorithms.loss import Aggregation, LossAggMode
from roll.algorithms.objectives import PolicyGradient
from roll.algorithms.policy_loss import PolicyLoss
from roll.features.teachers.targets import StudentOutputs, TeacherTargets
from roll.models.head_scores import PLAIN, Product, TeacherHead
from roll.types.batch import LossScale, TokenOutputs, TokenScores
from roll.types.collate import pad
from tests.unit.algorithms.rows import alone, random_samples

VOCAB, WIDTH, TEMPERATURE, COEF = 11, 5, 1.4, 0.3
MODES: list[LossAggMode] = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("coef", [COEF, 0.0])
def test_loss_and_gradient_equal_torchs_dense_kl(mode: LossAggMode, coef: float) -> None:
    """Row 1 has weight 0: what the reference told of it is left out with it. Without a weight the KL is told, and has
    no gradient."""
    rng, make = np.random.default_rng(5), torch.Generator().manual_seed(5)
    samples, values = random_samples(rng, [3, 4, 2]), np.array([0.7, 1.0, -1.2], np.float32)
    count = int(samples.response_mask.sum())
    theirs = torch.randn(count, WIDTH, generator=make, dtype=torch.float64).float()
    heads = [torch.randn(VOCAB, WIDTH, generator=make, dtype=torch.float64) for _ in range(2)]
    scores = TokenScores(teacher_targets=theirs.numpy())
    credit = assign_credit(samples, scores, values, CreditSettings(), alone, np.array([1.0, 0.0, 2.0]))[0]
    kept = torch.from_numpy(np.repeat([True, False, True], [3, 4, 2]))
    assert credit.teacher_targets is not None and torch.from_numpy(credit.teacher_targets).equal(theirs[kept])

    hidden = torch.randn(int(kept.sum()), WIDTH, generator=make, dtype=torch.float64).requires_grad_()
    weight = heads[0].requires_grad_()
    told = Distillation(Divergence("reverse_kl", TEMPERATURE, TEMPERATURE), VOCAB)
    head = TeacherHead(heads[1].numpy(), None, PLAIN, torch.float64)
    batch = pad(credit, np.array([2, 0, 1]), round_to=4)
    assert batch.teacher_targets is not None
    lesson = TeacherTargets(StudentOutputs.of(told, head, torch.device("cpu")), batch.teacher_targets)
    found = lesson.divergence([Product(hidden, weight)], None, PLAIN, 2 * VOCAB, False)
    flat = torch.zeros(batch.response_mask.shape, dtype=torch.float64)
    outputs = TokenOutputs(log_probs=flat, divergence=flat.masked_scatter(batch.response_mask, found))
    loss = PolicyLoss(PolicyGradient(), aggregation=Aggregation(mode, 6.0), kl_loss_coef=coef, kl_loss_estimator="full")
    value, metrics = loss(outputs, batch, LossScale(5, 2))

    exact = hidden.detach().clone().requires_grad_()
    states = torch.cat((theirs[7:], theirs[:3])).double()
    ours = torch.log_softmax(exact @ weight.T / TEMPERATURE, -1)
    others = torch.log_softmax(states @ heads[1].T / TEMPERATURE, -1)
    kl = functional.kl_div(others, ours, log_target=True, reduction="none").sum(-1)
    sums = torch.stack((kl[:2].sum(), kl[2:].sum()))
    wanted = {
        "token-mean": sums.sum() / 5,
        "seq-mean-token-mean": (sums / torch.tensor([2, 3])).sum() / 2,
        "seq-mean-token-sum": sums.sum() / 2,
        "seq-mean-token-sum-norm": sums.sum() / 2 / 6,
    }[mode]
    assert value.item() == pytest.approx(coef * wanted.item(), rel=1e-9, abs=1e-12)
    assert metrics.result()["kl_loss"] == pytest.approx(wanted.item(), rel=1e-6)
    if not coef:
        assert not value.requires_grad
        return
    value.backward()
    mine, weight.grad = weight.grad, None
    (coef * wanted).backward()
    torch.testing.assert_close(hidden.grad, exact.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(mine, weight.grad, rtol=1e-9, atol=1e-12)


def test_a_kl_that_the_reference_did_not_tell_is_no_zero() -> None:
    samples = random_samples(np.random.default_rng(0), [2])
    batch, _ = assign_credit(samples, TokenScores(), np.ones(1, np.float32), CreditSettings(), alone)
    loss = PolicyLoss(kl_loss_coef=0.1, kl_loss_estimator="full")
    outputs = TokenOutputs(log_probs=torch.zeros(1, int(samples.lengths[0])))
    with pytest.raises(ValueError, match="needs the reference's targets"):
        loss(outputs, pad(batch, np.array([0])), LossScale(2, 1))
