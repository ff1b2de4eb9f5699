"""Row values that the two norms cannot express: functions of the attempts of a step. One value each, float64 [N]."""

from __future__ import annotations

import numpy as np

from roll.algorithms.advantage import Attempts


def opo(attempts: Attempts) -> np.ndarray:
    """Reward minus the mean of the group weighted by length: the baseline of least variance where the gradient of an
    answer grows with its length (Hao et al., arXiv 2505.23585).

    Example: rewards [1 0], lengths [1 3] -> baseline .25, values [.75 -.25].
    """
    _, at = np.unique(attempts.groups, return_inverse=True)
    centred = attempts.rewards - attempts.group.mean  # exactly 0 in a group with equal rewards, and so is its shift
    lengths = np.maximum(attempts.lengths, 1)
    shift = np.bincount(at, lengths * centred) / np.bincount(at, lengths)
    return centred - shift[at]


def gpg(attempts: Attempts) -> np.ndarray:
    """(reward - mean of the group) x attempts / those in groups whose rewards differ: without the latter factor the
    gradient shrinks with every group that says nothing (GPG, arXiv 2504.02546)."""
    group = attempts.group
    num_telling = np.count_nonzero(group.std)
    return (attempts.rewards - group.mean) * len(attempts) / max(num_telling, 1)


def grpo_passk(attempts: Attempts) -> np.ndarray:
    """What an attempt adds to the best reward of its group: the best one its lead over the second, the others 0; the
    gradient of pass@k with k the size of the group (Tang et al., arXiv 2503.19595).

    Example: rewards [1 .4 0] -> [.6 0 0]; [1 1 0] -> [0 0 0].
    """
    order = np.lexsort((-attempts.rewards, attempts.groups))  # by group, the best first
    groups, rewards = attempts.groups[order], attempts.rewards[order]
    is_best = np.append(True, groups[1:] != groups[:-1])
    has_second = np.append(groups[1:] == groups[:-1], False)
    lead = rewards - np.append(rewards[1:], 0.0)
    values = np.zeros(len(attempts))
    values[order] = np.where(is_best & has_second, lead, 0.0)
    return values


def asymre(attempts: Attempts, asymre_baseline_shift: float) -> np.ndarray:
    """Reward - (mean of the group + shift): a baseline below the mean trusts right answers more than it flees wrong
    ones, which holds where answers are older than the policy (asymmetric REINFORCE, arXiv 2506.20520). Alone in its
    group an attempt gets 0."""
    group = attempts.group
    return np.where(group.count > 1, attempts.rewards - group.mean - asymre_baseline_shift, 0.0)
