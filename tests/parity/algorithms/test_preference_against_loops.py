"""Losses of pairs and their gradients against loops over single pairs and tokens in float64, written from the formulas
of docs/dpo.md. Not covered: that a strategy scales and sums micro batches correctly
(tests/parity/strategies/test_pairs.py)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from roll.algorithms.preference import BradleyTerryLoss, DPOLoss
from roll.types.batch import LossScale, PairRows, TokenOutputs
from roll.types.collate import pad
from tests.helpers.cases import cases
from tests.unit.algorithms.rows import padded_like

LENGTHS = [(5, 3), (4, 6), (9, 2), (7, 7)]  # chosen, rejected


def random_pairs(rng: np.random.Generator) -> PairRows:
    lengths = np.array([length for pair in LENGTHS for length in pair], np.int32)
    starts = [int(rng.integers(1, length)) for length in lengths]
    mask = np.concatenate([np.arange(length) >= start for length, start in zip(lengths, starts, strict=True)])
    return PairRows(
        lengths=lengths,
        input_ids=rng.integers(0, 50, len(mask)).astype(np.int32),
        response_mask=mask,
        loss_weights=np.ones(len(lengths), np.float32),
        margins=np.repeat(rng.uniform(0, 1, len(LENGTHS)), 2).astype(np.float32),
        ref_log_probs=(-rng.uniform(0, 3, len(mask)) * mask).astype(np.float32),
    )


def tokens_of(pairs: PairRows) -> list[list[int]]:
    """Flat positions of the answer's tokens of each row."""
    ends = np.cumsum(pairs.lengths)
    return [
        [t for t in range(end - length, end) if pairs.response_mask[t]]
        for end, length in zip(ends.tolist(), pairs.lengths.tolist(), strict=True)
    ]


def log_sigmoid(value: torch.Tensor) -> torch.Tensor:
    return -torch.log(1 + torch.exp(-value))


def of_micro_batches(loss: Any, pairs: PairRows, values: torch.Tensor, kind: str) -> tuple[float, torch.Tensor, Any]:
    """Loss, gradient and metrics, of two micro batches that divide the pairs unevenly."""
    given, total, metrics = values.clone().requires_grad_(True), torch.zeros((), dtype=torch.float64), None
    scale = LossScale(int(pairs.response_mask.sum()), len(pairs))
    starts = np.cumsum(pairs.lengths) - pairs.lengths
    for rows in (np.array([4, 5]), np.array([2, 3, 0, 1, 6, 7])):
        batch = pad(pairs, rows)
        tokens = np.concatenate([np.arange(starts[row], starts[row] + pairs.lengths[row]) for row in rows])
        part, sums = loss(TokenOutputs(**{kind: padded_like(batch, given, tokens, outside=7.0)}), batch, scale)
        total = total + part
        metrics = sums if metrics is None else metrics.merge([sums])
    total.backward()
    assert given.grad is not None and metrics is not None
    return float(total), given.grad, metrics.result()


@cases("settings")
def test_dpo_is_its_formula_pair_by_pair(settings: dict[str, Any]) -> None:
    rng, loss = np.random.default_rng(3), DPOLoss(**settings)
    pairs = random_pairs(rng)
    values = torch.from_numpy(-rng.uniform(0, 3, pairs.num_tokens))
    got, gradient, metrics = of_micro_batches(loss, pairs, values, "log_probs")

    given = values.clone().requires_grad_(True)
    losses, rewards, tokens = [], [], tokens_of(pairs)
    assert pairs.ref_log_probs is not None
    for pair in range(len(LENGTHS)):
        gaps = []
        for row in (2 * pair, 2 * pair + 1):
            gap = torch.zeros((), dtype=torch.float64)
            for t in tokens[row]:
                gap = gap + given[t] - (0.0 if loss.reference_free else float(pairs.ref_log_probs[t]))
            gaps.append(gap / len(tokens[row]) if loss.average_log_probs else gap)
        h = gaps[0] - gaps[1]
        if loss.ipo:
            one = (h - 1 / (2 * loss.beta)) ** 2
        else:
            share = loss.label_smoothing
            one = -(1 - share) * log_sigmoid(loss.beta * h) - share * log_sigmoid(-loss.beta * h)
        nll = -torch.stack([given[t] for t in tokens[2 * pair]]).mean()
        losses.append(one + loss.sft_loss_coef * nll)
        rewards.append([loss.beta * float(gap) for gap in gaps])
    want = torch.stack(losses).mean()
    want.backward()
    assert given.grad is not None
    assert got == pytest.approx(float(want.detach()), rel=2e-6)
    torch.testing.assert_close(gradient, given.grad, rtol=2e-6, atol=1e-9)
    assert metrics["loss"] == pytest.approx(got)
    assert metrics["accuracy"] == np.mean([chosen > rejected for chosen, rejected in rewards])
    assert metrics["reward_margin_mean"] == pytest.approx(np.mean([a - b for a, b in rewards]), rel=1e-5)
    assert metrics["reward_chosen_mean"] == pytest.approx(np.mean([a for a, _ in rewards]), rel=1e-5)


def test_bradley_terry_is_its_formula_pair_by_pair() -> None:
    rng = np.random.default_rng(5)
    pairs = random_pairs(rng)
    last = np.zeros(pairs.num_tokens, bool)
    last[np.cumsum(pairs.lengths) - 1] = True
    pairs = PairRows(**{name: getattr(pairs, name) for name in ("lengths", "input_ids", "loss_weights", "margins")},
                     response_mask=last)  # fmt: skip
    values = torch.from_numpy(rng.normal(size=pairs.num_tokens))
    got, gradient, metrics = of_micro_batches(BradleyTerryLoss(), pairs, values, "values")

    rewards = values[torch.from_numpy(last)].tolist()
    margins = pairs.margins[::2].tolist()
    gaps = [a - b - margin for a, b, margin in zip(rewards[::2], rewards[1::2], margins, strict=True)]
    want = sum(math.log(1 + math.exp(-gap)) for gap in gaps) / len(gaps)
    assert got == pytest.approx(want, rel=1e-6)
    slopes = [-1 / (1 + math.exp(gap)) / len(gaps) for gap in gaps]
    assert gradient[torch.from_numpy(last)].tolist() == pytest.approx(
        [sign * slope for slope in slopes for sign in (1, -1)], rel=1e-6
    )
    assert not gradient[torch.from_numpy(~last)].any()
    assert metrics["accuracy"] == np.mean([a > b for a, b in zip(rewards[::2], rewards[1::2], strict=True)])
