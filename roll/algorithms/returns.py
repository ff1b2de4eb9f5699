"""Sums of future rewards. Flat arrays over the response tokens alone, row after row; float64 inside."""

from __future__ import annotations

import numpy as np


def broadcast_returns(row_rewards: np.ndarray, lengths: np.ndarray, gamma: float) -> np.ndarray:
    """What each token is worth when only the last token of its row is rewarded. [sum of lengths].

    Example: rewards [1 2], lengths [3 1], gamma .5 -> [.25 .5 1 2]; with gamma 1 -> [1 1 1 2].
    """
    spread = np.repeat(row_rewards.astype(np.float64), lengths)
    if gamma == 1:
        return spread
    ends = np.repeat(np.cumsum(lengths), lengths)
    return spread * gamma ** (ends - 1 - np.arange(len(ends)))


def reward_to_go(rewards: np.ndarray, lengths: np.ndarray, gamma: float) -> np.ndarray:
    """G_t = r_t + gamma * G_(t+1) within each row, 0 after its last token.

    Example: rewards [1 2 4], one row, gamma .5 -> [3 4 4].
    """
    return generalized_advantages(rewards, np.zeros(len(rewards)), lengths, gamma, lambd=1.0)


def generalized_advantages(
    rewards: np.ndarray, values: np.ndarray, lengths: np.ndarray, gamma: float, lambd: float
) -> np.ndarray:
    """GAE (Schulman et al., arXiv 1506.02438, eq. 16), with V the value of the state before a token is sampled:

        delta_t = r_t + gamma * V_(t+1) - V_t;   A_t = delta_t + gamma * lambd * A_(t+1)

    Every row ends in a state worth 0, a row cut at the length limit too: what it would have earned is not estimated.
    The next token is the next response token, whatever an environment wrote in between.

    Example: one row, rewards [0 1], values [.5 .5], gamma 1, lambd 1 -> [.5 .5]; lambd 0 -> [0 .5].
    """
    order = np.argsort(-lengths, kind="stable")
    ends = (np.cumsum(lengths) - 1)[order]
    by_length = lengths[order]
    longest = int(by_length[0]) if len(by_length) else 0
    # active[k]: how many rows have a token k places before their last one; they come first in `order`.
    active = np.searchsorted(-by_length, -np.arange(longest), side="left")

    advantages = np.zeros(len(rewards))
    following, next_value = np.zeros(len(order)), np.zeros(len(order))
    for k, rows in enumerate(active):
        at = ends[:rows] - k
        value = values[at].astype(np.float64)
        delta = rewards[at] + gamma * next_value[:rows] - value
        advantages[at] = following[:rows] = delta + gamma * lambd * following[:rows]
        next_value[:rows] = value
    return advantages
