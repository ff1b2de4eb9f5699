"""Expected updates of every estimator and loss, over all responses of a small vocabulary.

A loop over the same formula proves that a formula is computed. It cannot prove that the formula does what its name
says. Here every response that a policy can give is a row, weighed by its probability, so that the product's own
advantages, losses and gradients add up to the exact expected update. It is compared with the gradient of the quantity
that docs/algorithms.md and docs/distillation.md name, which is written down again here. Not covered: variance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest

from roll.algorithms.credit import CreditSettings, assign_credit
from roll.configs.sections.teachers import OPDAdvantage
from roll.types.batch import SampleBatch, TokenScores
from tests.unit.algorithms.rows import alone

# A policy of six logits: a first token a, b or c, and after b a second one. Token i of the second place is 3 + i.
RESPONSES = ((0,), (2,), (1, 3), (1, 4), (1, 5))
REWARDS = np.array([0.2, 0.9, 1.0, 0.0, 0.3])
LOGITS = np.array([0.3, -0.4, 0.9, 1.0, -0.5, 0.1])
TARGET = np.array([-0.8, 0.9, 0.2, -0.6, 1.1, 0.4])  # of a teacher, a reference or another policy
Gradient = np.ndarray


def log_softmax(logits: np.ndarray) -> np.ndarray:
    pairs = logits.reshape(2, 3)
    return (pairs - np.log(np.exp(pairs).sum(1, keepdims=True))).ravel()


def slopes(logits: np.ndarray) -> np.ndarray:
    """d log p(token) / d logits, one row for each token. [6, 6]"""
    place = np.arange(6) // 3
    return np.eye(6) - np.exp(log_softmax(logits)) * (place[:, None] == place)


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Of the five responses."""
    log_probs = log_softmax(logits)
    return np.array([np.exp(sum(log_probs[token] for token in response)) for response in RESPONSES])


def numeric(of: Callable[[np.ndarray], float], logits: np.ndarray = LOGITS) -> Gradient:
    """The gradient by central differences."""
    steps = 1e-5 * np.eye(6)
    return np.array([(of(logits + step) - of(logits - step)) / 2e-5 for step in steps])


def rows_of(chosen: np.ndarray, groups: np.ndarray, logits: np.ndarray = LOGITS) -> SampleBatch:
    """Rows with these responses, each after a prompt of one token."""
    lengths = np.array([1 + len(RESPONSES[i]) for i in chosen], np.int32)
    starts, total = np.cumsum(lengths) - lengths, int(lengths.sum())
    mask = np.ones(total, bool)
    mask[starts] = False
    return SampleBatch(
        lengths=lengths,
        input_ids=np.zeros(total, np.int32),
        response_mask=mask,
        loss_weights=np.ones(len(chosen), np.float32),
        rollout_log_probs=flat(log_softmax(logits), chosen),
        policy_versions=np.zeros(total, np.int32),
        rewards=REWARDS[chosen].astype(np.float32),
        group_ids=groups.astype(np.int64),
        trajectory_ids=np.arange(len(chosen)),
        turns=np.zeros(len(chosen), np.int32),
        domains=np.full(len(chosen), "any"),
        finish_reasons=np.zeros(len(chosen), np.int8),
    )


def flat(by_token: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """A number of each token, where rows have it; 0 at their prompts. float32"""
    return np.array([x for i in chosen for x in (0.0, *(by_token[t] for t in RESPONSES[i]))], np.float32)


ALL = np.arange(len(RESPONSES))


def pushed(advantages: np.ndarray, chosen: np.ndarray, weights: np.ndarray, logits: np.ndarray = LOGITS) -> Gradient:
    """Sum over tokens of weight of the row * advantage * d log p / d logits: the policy gradient's step."""
    step, at, slope = np.zeros(6), 0, slopes(logits)
    for i, weight in zip(chosen, weights, strict=True):
        for k, token in enumerate(RESPONSES[i]):
            step += weight * advantages[at + 1 + k] * slope[token]
        at += 1 + len(RESPONSES[i])
    return step


# On-policy distillation: a divergence at each place, weighed by how often the policy gets there.

TEACHER_SHARE = 0.3


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float((p * np.log(p / q)).sum())


def jensen_shannon(p: np.ndarray, q: np.ndarray) -> float:
    m = TEACHER_SHARE * q + (1 - TEACHER_SHARE) * p
    return TEACHER_SHARE * kl(q, m) + (1 - TEACHER_SHARE) * kl(p, m)


def at_places(divergence: Callable[[np.ndarray, np.ndarray], float]) -> Callable[[np.ndarray], float]:
    """The divergence from TARGET, its expectation over the places that the policy of LOGITS visits."""
    second = np.exp(log_softmax(LOGITS))[1]
    q = np.exp(log_softmax(TARGET)).reshape(2, 3)

    def of(logits: np.ndarray) -> float:
        p = np.exp(log_softmax(logits)).reshape(2, 3)
        return divergence(p[0], q[0]) + second * divergence(p[1], q[1])

    return of


def taught(share: float | None) -> Gradient:
    log_p, log_q = (flat(log_softmax(logits), ALL) for logits in (LOGITS, TARGET))
    settings = CreditSettings("reinforce", teacher_alone=True, teacher_share=share)
    scores = TokenScores(old_log_probs=log_p, teacher_log_probs=log_q)
    rows = rows_of(ALL, ALL)
    batch, _ = assign_credit(rows, scores, np.zeros(5), settings, alone, teacher_weights=np.ones(5))
    return pushed(batch.advantages, ALL, probabilities(LOGITS))


def lowers_log_ratio() -> None:
    np.testing.assert_allclose(taught(None), -numeric(at_places(kl)), atol=1e-6)


def lowers_js_divergence() -> None:
    np.testing.assert_allclose(taught(TEACHER_SHARE), -numeric(at_places(jensen_shannon)), atol=1e-6)


SHELVES: dict[str, tuple[tuple[str, ...], dict[str, Callable[[], None]]]] = {
    "opd_advantage": (
        get_args(OPDAdvantage),
        {"log_ratio": lowers_log_ratio, "js_divergence": lowers_js_divergence},
    ),
}


@pytest.mark.parametrize("shelf", SHELVES)
def test_every_name_has_a_row(shelf: str) -> None:
    names, rows = SHELVES[shelf]
    assert set(names) == set(rows), "say what its expected update does"


@pytest.mark.parametrize(
    ("shelf", "name"), [(shelf, name) for shelf, (_, rows) in SHELVES.items() for name in rows], ids=str
)
def test_the_expected_update_does_what_the_name_says(shelf: str, name: str) -> None:
    SHELVES[shelf][1][name]()
