"""A policy of six logits with five responses, which tests of expected updates enumerate."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from roll.types.batch import SampleBatch

# A first token a, b or c, and after b a second one. Token i of the second place is 3 + i.
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


def expected_reward(logits: np.ndarray, rewards: np.ndarray = REWARDS) -> float:
    return float(probabilities(logits) @ rewards)


LIKELY = probabilities(LOGITS)
SECOND = float(np.exp(log_softmax(LOGITS))[1])
UPHILL = numeric(expected_reward)


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float((p * np.log(p / q)).sum())


def at_places(
    divergence: Callable[[np.ndarray, np.ndarray], float], other: np.ndarray = TARGET
) -> Callable[[np.ndarray], float]:
    """The divergence from `other`, its expectation over the places that the policy of LOGITS visits."""
    q = np.exp(log_softmax(other)).reshape(2, 3)

    def of(logits: np.ndarray) -> float:
        p = np.exp(log_softmax(logits)).reshape(2, 3)
        return divergence(p[0], q[0]) + SECOND * divergence(p[1], q[1])

    return of
