"""Clip-Cov, KL-Cov and M2PO, which choose tokens over a whole update, and their gradients against loops over single
tokens in float64.

The loops share no code with roll.algorithms, and know neither micro batches nor ranks. Not covered: the pass that gives
M2PO its log-probs (tests/unit/distributed/executor/test_chosen_tokens.py).
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
from roll.algorithms.second_moment import SecondMomentBound, SecondMomentChoice
from roll.types.batch import TrainBatch
from tests.parity.algorithms.test_losses_against_loops import RTOL, response_tokens
from tests.unit.algorithms.rows import alone, apply_loss, near, on_ranks, random_samples, random_train_batch

ROWS = 6
ALL = list(range(ROWS))
SPREADS = [[ALL], [[0, 3], [2, 1, 5, 4]], [[row] for row in ALL]]
"""Micro batches of all rows, of some, of one each."""
BY_COVARIANCE: dict[str, ClippedCovariance | PenalizedCovariance] = {
    "clip_cov": ClippedCovariance(0.25, 0.02, 1.0, ClippedRatio(0.15, 0.25)),
    "clip_cov, one token": ClippedCovariance(2e-4, 0.02, 1.0),
    "clip_cov, all of the range": ClippedCovariance(1.0, -0.5, 0.5),
    "clip_cov, none in the range": ClippedCovariance(0.5, 40.0, 50.0),
    "kl_cov": PenalizedCovariance(0.3, 0.7),
    "kl_cov, one token": PenalizedCovariance(2e-4, 1.3),
}
BY_MOMENT = {
    "m2po, some": SecondMomentBound(0.04),
    "m2po, most": SecondMomentBound(0.013),
    "m2po, all of them": SecondMomentBound(0.0),
    "m2po, none": SecondMomentBound(3.0),
}
OBJECTIVES = BY_COVARIANCE | BY_MOMENT
Chooser = ClippedCovariance | PenalizedCovariance | SecondMomentBound


def batch_of() -> tuple[TrainBatch, np.ndarray]:
    """A batch, and log-probs of the present policy."""
    rng = np.random.default_rng(7)
    batch = random_train_batch(rng, random_samples(rng, [4, 1, 0, 7, 9, 3], turns=2))
    return batch, near(rng, batch.samples, 0.3)


def old_of(batch: TrainBatch) -> np.ndarray:
    assert batch.old_log_probs is not None
    return batch.old_log_probs


def moved_tokens(batch: TrainBatch, present: np.ndarray, rows: list[int]) -> dict[int, float]:
    """(log r)^2 of the tokens of these rows that have gone the way of their advantage."""
    squares: dict[int, float] = {}
    for t in (t for row in rows for t in response_tokens(batch)[row]):
        log_ratio = float(present[t]) - float(old_of(batch)[t])
        if log_ratio * float(batch.advantages[t]) > 0:
            squares[t] = log_ratio**2
    return squares


def slow_choice(objective: Chooser, batch: TrainBatch, present: np.ndarray, rows: list[int]) -> set[int]:
    """The tokens chosen of an update of these rows: by M2PO the furthest, one by one, until the rest is near enough."""
    if isinstance(objective, SecondMomentBound):
        squares, gone = moved_tokens(batch, present, rows), set[int]()
        while squares and sum(squares.values()) / len(squares) > objective.threshold:
            furthest = max(squares, key=lambda t: squares[t])
            del squares[furthest]
            gone.add(furthest)
        return gone
    tokens = [t for row in rows for t in response_tokens(batch)[row]]
    mean = sum(float(old_of(batch)[t]) for t in tokens) / len(tokens)
    advantage = sum(float(batch.advantages[t]) for t in tokens) / len(tokens)
    covariances = {t: (float(old_of(batch)[t]) - mean) * (float(batch.advantages[t]) - advantage) for t in tokens}
    ordered = sorted(tokens, key=lambda t: covariances[t])
    count = max(math.floor(objective.ratio * len(tokens)), 1)
    if isinstance(objective, PenalizedCovariance):
        return set(ordered[-count:])
    ordered = [t for t in ordered if objective.lowest < covariances[t] < objective.highest]
    count = min(count, len(ordered))
    return {ordered[int((i + 0.5) * len(ordered) / count)] for i in range(count)}


def slow_loss(objective: Chooser, batch: TrainBatch, theta: torch.Tensor, chosen: set[int]) -> torch.Tensor:
    """The mean over the tokens, those that are dropped among them."""
    rows, total = response_tokens(batch), torch.zeros((), dtype=torch.float64)
    for row, tokens in enumerate(rows):
        for t in tokens:
            a, r = float(batch.advantages[t]), torch.exp(theta[t] - float(old_of(batch)[t]))
            if isinstance(objective, PenalizedCovariance):
                loss = -r * a + (objective.coef * torch.log(r).abs() if t in chosen else 0.0)
            elif t in chosen:
                continue
            elif isinstance(objective, SecondMomentBound):
                loss = -r * a
            else:
                low, high = 1 - (objective.clipped.low or 0), 1 + (objective.clipped.high or 0)
                bound = torch.tensor(min(max(r.item(), low), high), dtype=torch.float64)
                loss = -min(r * a, bound * a if bound.item() != r.item() else r * a, key=lambda x: x.item())
            total = total + float(batch.samples.loss_weights[row]) * loss
    return total / sum(map(len, rows))


def with_choice(objective: Chooser, batch: TrainBatch, present: np.ndarray) -> TrainBatch:
    if isinstance(objective, SecondMomentBound):
        chosen = objective.choice.find(batch, np.arange(batch.samples.num_tokens), present, alone)
    else:
        chosen = objective.choice.find(batch, [np.arange(len(batch))], alone)
    return replace(batch, chosen=chosen)


def chosen_of(batch: TrainBatch) -> set[int]:
    assert batch.chosen is not None
    return set(np.flatnonzero(batch.chosen).tolist())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradient_equal_the_loop_whatever_micro_batches_and_padding_are(name: str) -> None:
    objective, (batch, present) = OBJECTIVES[name], batch_of()
    theta = torch.from_numpy(present.astype(np.float64)).requires_grad_()
    chosen, squares = slow_choice(objective, batch, present, ALL), moved_tokens(batch, present, ALL)
    if name in BY_COVARIANCE:
        assert chosen or name == "clip_cov, none in the range"
    else:
        assert {"m2po, none": 0, "m2po, all of them": len(squares)}.get(name, len(chosen)) == len(chosen)
    expected = slow_loss(objective, batch, theta, chosen)
    (gradient,) = torch.autograd.grad(expected, [theta])
    batch, num_tokens = with_choice(objective, batch, present), int(batch.samples.response_mask.sum())
    assert chosen_of(batch) == chosen
    loss = PolicyLoss(objective, aggregation=Aggregation("token-mean"))
    for parts in SPREADS:
        for round_to in (1, 16):
            theta.grad = None
            rows = [np.array(part) for part in parts]
            value, metrics = apply_loss(loss, batch, {"log_probs": theta}, rows, round_to, outside=3.0)
            assert value == pytest.approx(expected.item(), rel=RTOL, abs=1e-12)
            torch.testing.assert_close(theta.grad, gradient, rtol=RTOL, atol=1e-9)
            found = metrics.result()
            share = found["covariance_fraction" if name in BY_COVARIANCE else "clip_fraction"]
            assert share == pytest.approx(len(chosen) / num_tokens)
            if name in BY_MOMENT:
                assert found["second_moment_mean"] == pytest.approx(sum(squares.values()) / len(squares), rel=RTOL)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_ranks_choose_what_the_loop_chooses(name: str) -> None:
    """By covariance in two updates, of which rank 0 has rows 0, 1 and 3, 4, rank 1 rows 2 and 5. By moments in one of
    rows 0, 1, 3 and 4: rank 0 has two of them, rank 1 row 4 and rank 2 row 3 beside another's."""
    objective, (batch, present) = OBJECTIVES[name], batch_of()
    of_ranks = [[0, 1], [4], [3, 5]] if name in BY_MOMENT else [[0, 1, 3, 4], [2, 5]]
    ends, found = np.cumsum(batch.samples.lengths), set[int]()

    def find(rank: int, all_reduce_sum: object) -> tuple[np.ndarray, np.ndarray]:
        rows = np.array(of_ranks[rank])
        spans = [np.arange(ends[r] - batch.samples.lengths[r], ends[r]) for r in rows]
        tokens = np.concatenate(spans)
        own = TrainBatch(batch.samples.select(rows), batch.advantages[tokens], old_of(batch)[tokens])
        if isinstance(objective, SecondMomentBound):
            of_update = np.arange(sum(map(len, spans[: 1 if rank else 2])))
            return tokens, objective.choice.find(own, of_update, present[tokens[of_update]], all_reduce_sum)  # type: ignore[arg-type]
        updates = np.split(np.arange(len(rows)), 2)
        return tokens, objective.choice.find(own, updates, all_reduce_sum, rank, 2)  # type: ignore[arg-type]

    for tokens, chosen in on_ranks(len(of_ranks), find):
        found |= set(tokens[chosen].tolist())
    updates = [[0, 1, 3, 4]] if name in BY_MOMENT else [[0, 1, 2], [3, 4, 5]]
    assert found == set[int]().union(*(slow_choice(objective, batch, present, rows) for rows in updates))


def test_tokens_of_equal_covariance_are_chosen_alike_however_ranks_divide_them() -> None:
    """All log-probs and advantages are the same: only attempt, turn and place tell tokens apart."""
    batch, _ = batch_of()
    same = np.ones_like(batch.advantages)
    batch = replace(batch, advantages=same, old_log_probs=-same)
    flipped = replace(batch, samples=batch.samples.select(np.arange(ROWS)[::-1]))

    def by_row(choice: CovarianceChoice, of: TrainBatch) -> list[list[bool]]:
        chosen = choice.find(of, [np.arange(ROWS)], alone)
        return [part.tolist() for part in np.split(chosen, np.cumsum(of.samples.lengths)[:-1])]

    for choice in (CovarianceChoice(0.2), CovarianceChoice(0.2, -1, 1, is_spread=True)):
        found = by_row(choice, batch)
        assert by_row(choice, flipped)[::-1] == found
        assert sum(map(sum, found)) == 4  # floor(.2 * 24)


def test_group_scaled_advantages_in_micro_batches_of_one_row_still_single_out_tokens() -> None:
    """With one advantage per row, the mean within a row leaves nothing; over the update the likeliest token of the best
    row and the unlikeliest of the worst stand out."""
    batch, present = batch_of()
    by_row = np.array([0.7071, 1.1547, 0.0, -0.577, 0.2, 0.1], np.float32)
    advantages = np.repeat(by_row, batch.samples.lengths) * batch.samples.response_mask
    batch = replace(batch, advantages=advantages)
    for objective in (PenalizedCovariance(0.1), ClippedCovariance(0.1, 0.05, 5.0)):
        expected = slow_choice(objective, batch, present, ALL)
        assert chosen_of(with_choice(objective, batch, present)) == expected and expected


@pytest.mark.parametrize("seed", range(20))
def test_squares_of_any_size_are_cut_where_the_loop_cuts(seed: int) -> None:
    """Log-ratios from 1e-6 to 8, in one long row, at thresholds between the smallest and the greatest mean."""
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, [300])
    size = samples.num_tokens
    old = np.full(size, -9.0, np.float32) * samples.response_mask
    log_ratio = 10 ** rng.uniform(-6, 0.9, size) * rng.choice([-1, 1], size)
    batch = TrainBatch(samples, rng.choice([-1.0, 1.0], size).astype(np.float32), old)
    present, bound = (old + log_ratio).astype(np.float32), SecondMomentBound(float(10 ** rng.uniform(-9, 1.5)))
    assert chosen_of(with_choice(bound, batch, present)) == slow_choice(bound, batch, present, [0])


def test_tokens_of_equal_squares_go_together() -> None:
    samples = random_samples(np.random.default_rng(0), [3])
    mask, ones = samples.response_mask, np.ones(samples.num_tokens, np.float32)
    batch, present = TrainBatch(samples, ones, -ones), -ones
    for log_ratios, stay in (((1e-4, 0.2, 0.3), 2), ((0.1, 0.3, 0.3), 1), ((0.3, 0.3, 0.3), 0)):
        present[mask] = -1 + np.array(log_ratios, np.float32)
        chosen = SecondMomentChoice(0.04).find(batch, np.arange(samples.num_tokens), present, alone)
        assert (~chosen)[mask].sum() == stay and not chosen[~mask].any()


def test_a_choice_without_old_log_probs_and_a_loss_without_a_choice_are_refused() -> None:
    batch, present = batch_of()
    for objective in (OBJECTIVES["kl_cov"], OBJECTIVES["m2po, some"]):
        with pytest.raises(ValueError, match="needs old_log_probs"):
            with_choice(objective, replace(batch, old_log_probs=None), present)
    with pytest.raises(ValueError, match="chosen by their covariance"):
        theta = torch.from_numpy(present).requires_grad_()
        apply_loss(PolicyLoss(OBJECTIVES["kl_cov"]), batch, {"log_probs": theta}, [np.arange(ROWS)])


def test_an_update_with_nothing_to_train_on_adds_exactly_nothing() -> None:
    batch, present = batch_of()
    batch = replace(batch, samples=replace(batch.samples, response_mask=np.zeros_like(batch.samples.response_mask)))
    for objective in OBJECTIVES.values():
        theta = torch.from_numpy(present).requires_grad_()
        of_all = with_choice(objective, batch, present)
        value, _ = apply_loss(PolicyLoss(objective), of_all, {"log_probs": theta}, [np.arange(ROWS)])
        assert value == 0 and theta.grad is not None and not theta.grad.any()
