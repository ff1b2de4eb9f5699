"""Clip-Cov and KL-Cov and their gradients against loops over single tokens in float64, over the whole update.

The loops share no code with roll.algorithms, and know neither micro batches nor ranks. Not covered: tokens of equal
covariance, which the loops do not tell apart.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from roll.algorithms.loss import Aggregation
from roll.algorithms.objectives import ClippedCovariance, ClippedRatio, CovarianceChoice, PenalizedCovariance
from roll.algorithms.policy_loss import PolicyLoss
from roll.types.batch import TrainBatch
from tests.parity.algorithms.test_losses_against_loops import RTOL, response_tokens
from tests.unit.algorithms.rows import alone, apply_loss, near, on_ranks, random_samples, random_train_batch

ROWS = 6
SPREADS = [[[0, 1, 2, 3, 4, 5]], [[0, 3], [2, 1, 5, 4]], [[row] for row in range(ROWS)]]
"""Micro batches of all rows, of some, of one each."""
OBJECTIVES: dict[str, ClippedCovariance | PenalizedCovariance] = {
    "clip_cov": ClippedCovariance(0.25, 0.02, 1.0, ClippedRatio(0.15, 0.25)),
    "clip_cov, one token": ClippedCovariance(2e-4, 0.02, 1.0),
    "clip_cov, all of the range": ClippedCovariance(1.0, -0.5, 0.5),
    "clip_cov, none in the range": ClippedCovariance(0.5, 40.0, 50.0),
    "kl_cov": PenalizedCovariance(0.3, 0.7),
    "kl_cov, one token": PenalizedCovariance(2e-4, 1.3),
}


def batch_of() -> tuple[TrainBatch, torch.Tensor]:
    rng = np.random.default_rng(7)
    batch = random_train_batch(rng, random_samples(rng, [4, 1, 0, 7, 9, 3], turns=2))
    return batch, torch.from_numpy(near(rng, batch.samples, 0.3).astype(np.float64)).requires_grad_()


def slow_choice(objective: ClippedCovariance | PenalizedCovariance, batch: TrainBatch, rows: list[int]) -> set[int]:
    """The tokens chosen of an update of these rows."""
    assert batch.old_log_probs is not None
    of_rows = response_tokens(batch)
    tokens = [t for row in rows for t in of_rows[row]]
    mean = sum(float(batch.old_log_probs[t]) for t in tokens) / len(tokens)
    advantage = sum(float(batch.advantages[t]) for t in tokens) / len(tokens)
    covariances = {t: (float(batch.old_log_probs[t]) - mean) * (float(batch.advantages[t]) - advantage) for t in tokens}
    ordered = sorted(tokens, key=lambda t: covariances[t])
    count = max(math.floor(objective.ratio * len(tokens)), 1)
    if isinstance(objective, PenalizedCovariance):
        return set(ordered[-count:])
    ordered = [t for t in ordered if objective.lowest < covariances[t] < objective.highest]
    count = min(count, len(ordered))
    return {ordered[int((i + 0.5) * len(ordered) / count)] for i in range(count)}


def slow_loss(
    objective: ClippedCovariance | PenalizedCovariance, batch: TrainBatch, theta: torch.Tensor, chosen: set[int]
) -> torch.Tensor:
    """The mean over the tokens."""
    assert batch.old_log_probs is not None
    rows, total = response_tokens(batch), torch.zeros((), dtype=torch.float64)
    for row, tokens in enumerate(rows):
        for t in tokens:
            a, r = float(batch.advantages[t]), torch.exp(theta[t] - float(batch.old_log_probs[t]))
            if isinstance(objective, PenalizedCovariance):
                loss = -r * a + (objective.coef * torch.log(r).abs() if t in chosen else 0.0)
            elif t in chosen:
                continue
            else:
                low, high = 1 - (objective.clipped.low or 0), 1 + (objective.clipped.high or 0)
                bound = torch.tensor(min(max(r.item(), low), high), dtype=torch.float64)
                loss = -min(r * a, bound * a if bound.item() != r.item() else r * a, key=lambda x: x.item())
            total = total + float(batch.samples.loss_weights[row]) * loss
    return total / sum(map(len, rows))


def with_choice(objective: ClippedCovariance | PenalizedCovariance, batch: TrainBatch) -> TrainBatch:
    return replace(batch, chosen=objective.choice.find(batch, [np.arange(len(batch))], alone))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradient_equal_the_loop_whatever_micro_batches_and_padding_are(name: str) -> None:
    batch, theta = batch_of()
    chosen = slow_choice(OBJECTIVES[name], batch, list(range(ROWS)))
    expected = slow_loss(OBJECTIVES[name], batch, theta, chosen)
    (gradient,) = torch.autograd.grad(expected, [theta])
    loss = PolicyLoss(OBJECTIVES[name], aggregation=Aggregation("token-mean"))
    batch, num_tokens = with_choice(OBJECTIVES[name], batch), int(batch.samples.response_mask.sum())
    for parts in SPREADS:
        for round_to in (1, 16):
            theta.grad = None
            rows = [np.array(part) for part in parts]
            value, metrics = apply_loss(loss, batch, {"log_probs": theta}, rows, round_to, outside=3.0)
            assert value == pytest.approx(expected.item(), rel=RTOL)
            assert theta.grad is not None
            torch.testing.assert_close(theta.grad, gradient, rtol=RTOL, atol=1e-9)
            assert metrics.result()["covariance_fraction"] == pytest.approx(len(chosen) / num_tokens)
    assert chosen or name == "clip_cov, none in the range"


@pytest.mark.parametrize("name", OBJECTIVES)
def test_several_updates_on_several_ranks_choose_what_the_loop_chooses(name: str) -> None:
    """Two updates; rank 0 has rows 0, 1 and 3, 4 of them, rank 1 rows 2 and 5."""
    batch, _ = batch_of()
    found, of_ranks = np.zeros(batch.samples.num_tokens, bool), ([[0, 1], [3, 4]], [[2], [5]])
    ends = np.cumsum(batch.samples.lengths)

    def find(rank: int, all_reduce_sum: object) -> tuple[np.ndarray, np.ndarray]:
        rows = np.array([row for update in of_ranks[rank] for row in update])
        tokens = np.concatenate([np.arange(ends[r] - batch.samples.lengths[r], ends[r]) for r in rows])
        assert batch.old_log_probs is not None
        own = TrainBatch(batch.samples.select(rows), batch.advantages[tokens], batch.old_log_probs[tokens])
        updates = np.split(np.arange(len(rows)), 2)
        return tokens, OBJECTIVES[name].choice.find(own, updates, all_reduce_sum, rank, 2)  # type: ignore[arg-type]

    for tokens, chosen in on_ranks(2, find):
        found[tokens] = chosen
    expected = slow_choice(OBJECTIVES[name], batch, [0, 1, 2]) | slow_choice(OBJECTIVES[name], batch, [3, 4, 5])
    assert set(np.flatnonzero(found).tolist()) == expected


def test_tokens_of_equal_covariance_are_chosen_alike_however_ranks_divide_them() -> None:
    """All log-probs and advantages are the same: only attempt, turn and place tell tokens apart."""
    batch, _ = batch_of()
    same = np.ones_like(batch.advantages)
    batch = replace(batch, advantages=same, old_log_probs=-same)
    counts = []
    for choice in (CovarianceChoice(0.2), CovarianceChoice(0.2, -1, 1, is_spread=True)):
        alone_chosen = choice.find(batch, [np.arange(ROWS)], alone)
        flipped = replace(batch, samples=batch.samples.select(np.arange(ROWS)[::-1]))
        ends = np.cumsum(flipped.samples.lengths)
        turned = choice.find(flipped, [np.arange(ROWS)], alone)
        assert [part.tolist() for part in np.split(turned, ends[:-1])][::-1] == [
            part.tolist() for part in np.split(alone_chosen, np.cumsum(batch.samples.lengths)[:-1])
        ]
        counts.append(int(alone_chosen.sum()))
    assert counts == [4, 4]  # floor(.2 * 24)


def test_group_scaled_advantages_in_micro_batches_of_one_row_still_single_out_tokens() -> None:
    """With one advantage per row, the mean within a row leaves nothing; over the update the likeliest token of the best
    row and the unlikeliest of the worst stand out."""
    batch, _ = batch_of()
    row_of = np.repeat(np.arange(ROWS), batch.samples.lengths)
    by_row = np.array([0.7071, 1.1547, 0.0, -0.577, 0.2, 0.1], np.float32)
    batch = replace(batch, advantages=by_row[row_of] * batch.samples.response_mask)
    for objective in (PenalizedCovariance(0.1), ClippedCovariance(0.1, 0.05, 5.0)):
        chosen = with_choice(objective, batch).chosen
        assert chosen is not None
        expected = slow_choice(objective, batch, list(range(ROWS)))
        assert set(np.flatnonzero(chosen).tolist()) == expected and expected


def test_a_choice_without_old_log_probs_and_a_loss_without_a_choice_are_refused() -> None:
    batch, theta = batch_of()
    with pytest.raises(ValueError, match="needs old_log_probs"):
        CovarianceChoice(0.1).find(replace(batch, old_log_probs=None), [np.arange(ROWS)], alone)
    with pytest.raises(ValueError, match="chosen by their covariance"):
        apply_loss(PolicyLoss(OBJECTIVES["kl_cov"]), batch, {"log_probs": theta}, [np.arange(ROWS)])


def test_an_update_with_nothing_to_train_on_adds_exactly_nothing() -> None:
    batch, theta = batch_of()
    batch = replace(batch, samples=replace(batch.samples, response_mask=np.zeros_like(batch.samples.response_mask)))
    for objective in OBJECTIVES.values():
        theta.grad = None
        of_all = with_choice(objective, batch)
        value, _ = apply_loss(PolicyLoss(objective), of_all, {"log_probs": theta}, [np.arange(ROWS)])
        assert value == 0 and theta.grad is not None and not theta.grad.any()
