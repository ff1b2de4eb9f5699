"""M2PO and its gradient against a loop over single tokens in float64, which takes the furthest tokens away one by one.

The loop shares no code with roll.algorithms, and knows neither micro batches nor ranks. Not covered: tokens of equal
squares, which the loop does not tell apart, and the pass that gives the log-probs
(tests/unit/distributed/executor/test_chosen_tokens.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from roll.algorithms.loss import Aggregation
from roll.algorithms.policy_loss import PolicyLoss
from roll.algorithms.second_moment import SecondMomentBound, SecondMomentChoice
from roll.types.batch import TrainBatch
from tests.parity.algorithms.test_losses_against_loops import RTOL, response_tokens
from tests.unit.algorithms.rows import alone, apply_loss, near, on_ranks, random_samples, random_train_batch

ROWS = 6
SPREADS = [[[0, 1, 2, 3, 4, 5]], [[0, 3], [2, 1, 5, 4]], [[row] for row in range(ROWS)]]
"""Micro batches of all rows, of some, of one each."""
OBJECTIVES = {
    "some": SecondMomentBound(0.04),
    "most": SecondMomentBound(0.013),
    "all of them": SecondMomentBound(0.0),
    "none": SecondMomentBound(3.0),
}


def batch_of() -> tuple[TrainBatch, np.ndarray]:
    """A batch, and log-probs of the present policy."""
    rng = np.random.default_rng(7)
    batch = random_train_batch(rng, random_samples(rng, [4, 1, 0, 7, 9, 3], turns=2))
    return batch, near(rng, batch.samples, 0.3)


def moved_tokens(batch: TrainBatch, present: np.ndarray, rows: list[int]) -> dict[int, float]:
    """(log r)^2 of the tokens of these rows that have gone the way of their advantage."""
    assert batch.old_log_probs is not None
    squares: dict[int, float] = {}
    for t in (t for row in rows for t in response_tokens(batch)[row]):
        log_ratio, a = float(present[t]) - float(batch.old_log_probs[t]), float(batch.advantages[t])
        if (a > 0 and log_ratio > 0) or (a < 0 and log_ratio < 0):
            squares[t] = log_ratio**2
    return squares


def slow_choice(threshold: float, batch: TrainBatch, present: np.ndarray, rows: list[int]) -> set[int]:
    squares, gone = moved_tokens(batch, present, rows), set[int]()
    while squares and sum(squares.values()) / len(squares) > threshold:
        furthest = max(squares, key=lambda t: squares[t])
        del squares[furthest]
        gone.add(furthest)
    return gone


def slow_loss(batch: TrainBatch, theta: torch.Tensor, gone: set[int]) -> torch.Tensor:
    """The mean over the tokens, those that are gone with them."""
    assert batch.old_log_probs is not None
    rows, total = response_tokens(batch), torch.zeros((), dtype=torch.float64)
    for row, tokens in enumerate(rows):
        for t in set(tokens) - gone:
            r = torch.exp(theta[t] - float(batch.old_log_probs[t]))
            total = total - float(batch.samples.loss_weights[row]) * r * float(batch.advantages[t])
    return total / sum(map(len, rows))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradient_equal_the_loop_whatever_micro_batches_and_padding_are(name: str) -> None:
    objective, (batch, present) = OBJECTIVES[name], batch_of()
    theta = torch.from_numpy(present.astype(np.float64)).requires_grad_()
    squares = moved_tokens(batch, present, list(range(ROWS)))
    gone = slow_choice(objective.threshold, batch, present, list(range(ROWS)))
    assert {"none": 0, "all of them": len(squares)}.get(name, len(gone)) == len(gone)
    assert name in ("none", "all of them") or 0 < len(gone) < len(squares)
    expected = slow_loss(batch, theta, gone)
    (gradient,) = torch.autograd.grad(expected, [theta])
    everything = np.arange(batch.samples.num_tokens)
    chosen = objective.choice.find(batch, everything, present, alone)
    assert set(np.flatnonzero(chosen).tolist()) == gone
    batch, num_tokens = replace(batch, chosen=chosen), int(batch.samples.response_mask.sum())
    loss = PolicyLoss(objective, aggregation=Aggregation("token-mean"))
    for parts in SPREADS:
        for round_to in (1, 16):
            theta.grad = None
            rows = [np.array(part) for part in parts]
            value, metrics = apply_loss(loss, batch, {"log_probs": theta}, rows, round_to, outside=3.0)
            assert value == pytest.approx(expected.item(), rel=RTOL, abs=1e-12)
            assert theta.grad is not None
            torch.testing.assert_close(theta.grad, gradient, rtol=RTOL, atol=1e-9)
            found = metrics.result()
            assert found["clip_fraction"] == pytest.approx(len(gone) / num_tokens)
            assert found["second_moment_mean"] == pytest.approx(sum(squares.values()) / len(squares), rel=RTOL)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_ranks_choose_what_the_loop_chooses(name: str) -> None:
    """One update of rows 0, 1, 3 and 4; rank 0 has two of them, rank 1 row 4 and rank 2 row 3 beside another's."""
    batch, present = batch_of()
    of_ranks, ends, found = [[0, 1], [4], [3, 5]], np.cumsum(batch.samples.lengths), set[int]()

    def find(rank: int, all_reduce_sum: object) -> tuple[np.ndarray, np.ndarray]:
        spans = [np.arange(ends[r] - batch.samples.lengths[r], ends[r]) for r in of_ranks[rank]]
        tokens, of_update = np.concatenate(spans), np.arange(sum(map(len, spans[: 1 if rank else 2])))
        assert batch.old_log_probs is not None
        samples = batch.samples.select(np.array(of_ranks[rank]))
        own = TrainBatch(samples, batch.advantages[tokens], batch.old_log_probs[tokens])
        now = present[tokens[of_update]]
        return tokens, OBJECTIVES[name].choice.find(own, of_update, now, all_reduce_sum)  # type: ignore[arg-type]

    for tokens, chosen in on_ranks(3, find):
        found |= set(tokens[chosen].tolist())
    assert found == slow_choice(OBJECTIVES[name].threshold, batch, present, [0, 1, 3, 4])


@pytest.mark.parametrize("seed", range(20))
def test_squares_of_any_size_are_cut_where_the_loop_cuts(seed: int) -> None:
    """Log-ratios from 1e-6 to 8, in one long row, at thresholds between the smallest and the greatest mean."""
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, [300])
    size = samples.num_tokens
    old = np.full(size, -9.0, np.float32) * samples.response_mask
    log_ratio = 10 ** rng.uniform(-6, 0.9, size) * rng.choice([-1, 1], size)
    batch = TrainBatch(samples, rng.choice([-1.0, 1.0], size).astype(np.float32), old)
    present, threshold = (old + log_ratio).astype(np.float32), float(10 ** rng.uniform(-9, 1.5))
    chosen = SecondMomentChoice(threshold).find(batch, np.arange(size), present, alone)
    assert set(np.flatnonzero(chosen).tolist()) == slow_choice(threshold, batch, present, [0])


def test_the_example_of_the_docstring_and_equal_squares() -> None:
    rng = np.random.default_rng(0)
    samples = random_samples(rng, [3])
    mask, ones = samples.response_mask, np.ones(samples.num_tokens, np.float32)
    batch = TrainBatch(samples, ones, np.full(samples.num_tokens, -1, np.float32))
    present = np.full(samples.num_tokens, -1, np.float32)
    for log_ratios, stay in (((1e-4, 0.2, 0.3), 2), ((0.1, 0.3, 0.3), 1), ((0.3, 0.3, 0.3), 0)):
        present[mask] = -1 + np.array(log_ratios, np.float32)
        chosen = SecondMomentChoice(0.04).find(batch, np.arange(samples.num_tokens), present, alone)
        assert (~chosen)[mask].sum() == stay and not chosen[~mask].any()


def test_old_log_probs_are_needed() -> None:
    batch, present = batch_of()
    with pytest.raises(ValueError, match="needs old_log_probs"):
        SecondMomentChoice(0.1).find(replace(batch, old_log_probs=None), np.arange(len(present)), present, alone)
