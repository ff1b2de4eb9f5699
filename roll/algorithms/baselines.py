"""Row values that the two norms cannot express: functions of the attempts of a step. One value each, float64 [N]."""

from __future__ import annotations

import numpy as np

from roll.algorithms.advantage import Attempts
from roll.configs.tables.estimators import OPMDBaseline, RAFTKeep


def remax(attempts: Attempts) -> np.ndarray:
    """Reward minus that of the greedy answer to the same prompt: a baseline that needs neither a critic nor other
    attempts (ReMax, Li et al., arXiv 2310.10505). 0 where the greedy answer failed, since there is nothing to compare
    with.

    Example: rewards [1 0], greedy 1 -> [0 -1].
    """
    if attempts.greedy_rewards is None:
        raise ValueError("adv_estimator: remax: the rollout gave no reward of a greedy answer")
    return np.where(np.isnan(attempts.greedy_rewards), 0.0, attempts.rewards - attempts.greedy_rewards)


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


def raft(attempts: Attempts, raft_keep: RAFTKeep) -> np.ndarray:
    """1 for attempts that are learned as if they were given answers, 0 for the others: the first best one of each group
    (RAFT, Dong et al., arXiv 2304.06767), or all with a reward above 0 (Xiong et al., arXiv 2504.11343).

    Example: rewards [0 1 1 -1]: best [0 1 0 0], positive [0 1 1 0].
    """
    if raft_keep == "positive":
        return (attempts.rewards > 0).astype(np.float64)
    order = np.lexsort((-attempts.rewards, attempts.groups))  # stable: of equals the first
    groups = attempts.groups[order]
    values = np.zeros(len(attempts))
    values[order] = np.append(True, groups[1:] != groups[:-1])
    return values


def opmd(attempts: Attempts, opmd_baseline: OPMDBaseline, opmd_baseline_tau: float) -> np.ndarray:
    """Reward minus the mean of the group, or minus tau log(mean of exp(reward / tau)), the value of the group's task
    under KL-regularised rewards (online policy mirror descent; Kimi k1.5, arXiv 2501.12599, section 2.3.2; Trinity-RFT,
    arXiv 2505.17826). Alone in its group an attempt gets 0.

    Example: rewards [1 0], tau 1: mean [.5 -.5], logavgexp [.380 -.620].
    """
    if opmd_baseline == "mean":
        return np.where(attempts.group.count > 1, attempts.rewards - attempts.group.mean, 0.0)
    _, at = np.unique(attempts.groups, return_inverse=True)
    best = np.full(at.max() + 1, -np.inf)
    np.maximum.at(best, at, attempts.rewards)
    behind = attempts.rewards - best[at]  # exactly 0 in a group with equal rewards
    mean = np.bincount(at, np.exp(behind / opmd_baseline_tau)) / np.bincount(at)
    return behind - opmd_baseline_tau * np.log(mean)[at]
