"""Row values: what each trajectory earned, compared with the others. Works on row metadata, on the driver."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Never, TypeVar, cast

import numpy as np

from roll.algorithms.normalize import KeyMoments, RunningMoments, clip_fraction, divide_by_std, moments_by_key
from roll.algorithms.user_code import call_user, one_each
from roll.configs.tables.estimators import (
    DECLARED,
    Estimator,
    MeanScope,
    OPMDBaseline,
    RAFTKeep,
    StdScope,
    Whitening,
    estimator_of,
)
from roll.utils.imports import resolve

MeanType = Literal["default"] | MeanScope | None
StdType = Literal["default"] | StdScope | None
F = TypeVar("F", bound=Callable[..., Any])


def estimator(
    *functions: Never,
    needs_groups: bool = False,
    whitens: Whitening = False,
    needs_critic: bool = False,
    per_turn: bool = False,
    steps_only: bool = False,
) -> Callable[[F], F]:
    """Says what a function of one's own is, so that `adv_estimator: package.module:function` may name it.

    The function is called with the Attempts of a step and adv_args, and returns a number for each attempt.

    - needs_groups: it compares attempts at the same task, so a group of one is refused.
    - whitens: the advantages of all tokens are whitened over the batch afterwards; "rows": each response counts once.
    - needs_critic: the numbers are rewards from which GAE computes token advantages, with a critic's values.
    - per_turn: it is called with the Turns (roll.algorithms.episodes) of an agentic run instead and returns a number
      for each turn; steps_only: only with one sample per turn.
    """
    if functions:
        raise TypeError("write @estimator() with brackets, and what the function is as keyword arguments in them")
    if per_turn and needs_critic:
        raise ValueError("per_turn and needs_critic exclude each other: a critic values tokens")
    if steps_only and not per_turn:
        raise ValueError("steps_only is about turns: it needs per_turn")
    row = Estimator(
        name="",
        per_turn=per_turn,
        steps_only=steps_only,
        needs_groups=needs_groups,
        needs_critic=needs_critic,
        whitens=whitens,
        discount="step_reward_gamma" if per_turn else "gamma",
    )

    def declare(function: F) -> F:
        setattr(function, DECLARED, row)
        return function

    return declare


@dataclass(frozen=True)
class Attempts:
    """The attempts of a step that did not fail, N of them; those of a group are anywhere among them."""

    rewards: np.ndarray  # float64
    groups: np.ndarray  # int64: the same number for attempts at the same task
    domains: np.ndarray  # text
    lengths: np.ndarray  # response tokens
    greedy_rewards: np.ndarray | None = None  # of the greedy answer to the same task, NaN where it failed
    parts: np.ndarray | None = None  # float64 [N, parts]: what each part of the reward gave

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def group(self) -> KeyMoments:
        """Group statistics of each attempt: the size of its group and the mean and deviation of the group's rewards.
        [N] each."""
        return moments_by_key(self.rewards, self.groups)


@dataclass(frozen=True)
class AdvantageSettings:
    """`default` norms are those of the estimator; None is no norm. Dr. GRPO is grpo with norm_std_type None."""

    estimator: str = "grpo"
    norm_mean_type: MeanType = "default"
    norm_std_type: StdType = "default"
    reward_clip: float | None = None
    limits: tuple[float, float] | None = None  # normalised values are cut to this range, before reward_clip
    args: Mapping[str, Any] = field(default_factory=dict)  # of the estimator's function

    def within_limits(self, values: np.ndarray) -> np.ndarray:
        return values if self.limits is None else np.clip(values, *self.limits)

    @property
    def norms(self) -> tuple[MeanType, StdType]:
        """Statistics (what is subtracted, what divides) with `default` resolved to those of the estimator."""
        row = estimator_of(self.estimator)
        return (
            row.mean if self.norm_mean_type == "default" else self.norm_mean_type,
            row.std if self.norm_std_type == "default" else self.norm_std_type,
        )

    @property
    def compares_groups(self) -> bool:
        """True if a group with equal rewards gets 0."""
        return self.norms[0] in ("group", "leave_one_out") or estimator_of(self.estimator).needs_groups


def group_advantages(
    rewards: np.ndarray,
    group_ids: np.ndarray,
    settings: AdvantageSettings,
    domains: np.ndarray | None = None,
    running: Mapping[str, RunningMoments] | None = None,
    lengths: np.ndarray | None = None,
    greedy_rewards: np.ndarray | None = None,
    parts: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, float]]:
    """(reward - mean) / std of every row, or what the estimator's own function says, clipped to +-reward_clip. float32
    [R], and metrics. `lengths`: response tokens; None: all alike. `greedy_rewards`: of the greedy answer to a row's
    task, where the rollout has one. `parts` [R, parts]: what parts of the reward gave.

    - `batch` moments are over all rows, or over those of the row's domain when `domains` are given; deviations are
      sample deviations (n - 1) of the raw rewards.
    - `running` moments are by domain ("" without domains) and include this step if the caller has updated them.
    - A failed attempt (NaN) is left out of every mean and gets 0.
    - A group with equal rewards, or with one attempt that did not fail, gets exactly 0 from a group or leave-one-out
      mean, and from functions that compare within groups; asymre's shift alone leaves equal rewards something, remax
      compares with another answer, and gdpo parts whose sums are equal.
    - A deviation of 0 divides nothing.

    Example: rewards [1 0 0 NaN] in one group: grpo [1.155 -.577 -.577 0], rloo [1 -.5 -.5 0], reinforce [1 0 0 0].
    """
    rewards = np.asarray(rewards, np.float64)
    domains = np.full(len(rewards), "") if domains is None else domains
    row, group = estimator_of(settings.estimator), moments_by_key(rewards, group_ids)
    if row.takes_norms:
        values = _centred(rewards, group, settings, domains, running)
    else:
        lengths = np.ones(len(rewards), np.int64) if lengths is None else lengths
        values = _values_by_function(
            row, Attempts(rewards, np.asarray(group_ids), domains, lengths, greedy_rewards, parts), settings
        )
    if (std_type := settings.norms[1]) is not None:
        values = divide_by_std(values, _moments(std_type, rewards, group, domains, running).std)
    values = settings.within_limits(values)
    failed = np.isnan(rewards)
    metrics = reward_metrics(rewards, group_ids)
    if settings.reward_clip is not None:
        metrics["reward_clip_fraction"] = clip_fraction(values[~failed], settings.reward_clip)
        values = np.clip(values, -settings.reward_clip, settings.reward_clip)
    return np.where(failed, 0.0, values).astype(np.float32), metrics


def _centred(
    rewards: np.ndarray,
    group: KeyMoments,
    settings: AdvantageSettings,
    domains: np.ndarray,
    running: Mapping[str, RunningMoments] | None,
) -> np.ndarray:
    match settings.norms[0]:
        case None:
            return rewards
        case "leave_one_out":
            # r - mean of the n - 1 others = (r - mean of all n) * n / (n - 1)
            return (rewards - group.mean) * group.count / np.maximum(group.count - 1, 1)
        case scope:
            return rewards - _moments(scope, rewards, group, domains, running).mean


def _values_by_function(row: Estimator, rows: Attempts, settings: AdvantageSettings) -> np.ndarray:
    """Call the estimator's function on the attempts that did not fail; the others get 0."""
    assert row.function is not None
    known = ~np.isnan(rows.rewards)
    columns = (np.asarray(column)[known] for column in (rows.rewards, rows.groups, rows.domains, rows.lengths))
    greedy = None if rows.greedy_rewards is None else rows.greedy_rewards[known]
    parts = None if rows.parts is None else rows.parts[known]
    attempts = Attempts(*columns, greedy_rewards=greedy, parts=parts)
    values = np.zeros(len(rows))
    if not len(attempts):
        return values
    function = cast(Callable[..., Any], resolve(row.function))
    if row.is_user_defined:
        name = f"adv_estimator: {row.name}"
        returned = call_user(name, function, attempts, **settings.args)
        values[known] = one_each(name, "attempts", returned, attempts.rewards, attempts.groups)
    else:
        values[known] = function(attempts, **settings.args)
    return values


def _moments(
    kind: str, rewards: np.ndarray, group: KeyMoments, domains: np.ndarray, running: Mapping[str, RunningMoments] | None
) -> KeyMoments:
    match kind:
        case "group":
            return group
        case "batch":
            return moments_by_key(rewards, domains)
        case "running":
            names, index = np.unique(domains, return_inverse=True)
            known = [(running or {}).get(str(name), RunningMoments()) for name in names]
            count, mean, std = np.array([(m.count, m.mean, m.std) for m in known], np.float64).reshape(-1, 3).T
            return KeyMoments(count[index].astype(np.int64), mean[index], std[index])
        case _:
            raise ValueError(f"unknown norm {kind!r}; known: batch, group, running, and leave_one_out for the mean")


def reward_metrics(rewards: np.ndarray, group_ids: np.ndarray) -> dict[str, float]:
    """Metrics of the rewards of all attempts that did not fail (a failed one is NaN); {} if all failed."""
    group = moments_by_key(rewards, group_ids)
    known = ~np.isnan(rewards)
    rewards, group_ids, stds, counts = rewards[known], group_ids[known], group.std[known], group.count[known]
    if not len(rewards):
        return {}
    _, first = np.unique(group_ids, return_index=True)
    metrics = {
        "reward_mean": float(rewards.mean()),
        "reward_max": float(rewards.max()),
        "reward_min": float(rewards.min()),
        "reward_std": float(rewards.std(ddof=1)) if len(rewards) > 1 else 0.0,
    }
    compared = first[counts[first] > 1]
    if len(compared):
        metrics["group_reward_std_mean"] = float(stds[compared].mean())
        metrics["group_equal_rewards_fraction"] = float((stds[compared] == 0).mean())
    return metrics


# Row values that the two norms cannot express: functions of the attempts of a step. One value each, float64 [N].


def remax(attempts: Attempts) -> np.ndarray:
    """Reward minus that of the greedy answer to the same prompt: a baseline that needs neither a critic nor other
    attempts (ReMax, Li et al., arXiv 2310.10505). 0 where the greedy answer failed, since there is nothing to compare
    with.

    Example: rewards [1 0], greedy 1 -> [0 -1].
    """
    if attempts.greedy_rewards is None:
        raise ValueError("adv_estimator: remax: the rollout gave no reward of a greedy response")
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


def gdpo(
    attempts: Attempts, gdpo_reward_keys: Sequence[str], gdpo_reward_weights: Sequence[float] | None
) -> np.ndarray:
    """Sum over the parts of the reward of weight * (part - mean) / (deviation + 1e-6), both of the group: each part is
    compared by itself, so that none drowns another (GDPO, arXiv 2601.05242, section 3).

    Example: two parts, [1 0] and [0 1] of one group, weights 1 -> [0 0]; weights 1 and .5 -> [.354 -.354].
    """
    if attempts.parts is None:
        raise ValueError("adv_estimator: gdpo: the rollout gave no parts of rewards")
    weights = gdpo_reward_weights or [1.0] * len(gdpo_reward_keys)
    values = np.zeros(len(attempts))
    for part, weight in zip(attempts.parts.T, weights, strict=True):
        group = moments_by_key(part, attempts.groups)
        values += weight * divide_by_std(part - group.mean, group.std)
    return values


def gpg(attempts: Attempts) -> np.ndarray:
    """(reward - mean of the group) x attempts / those in groups whose rewards differ: without the latter factor the
    gradient shrinks with every group that says nothing (GPG, arXiv 2504.02546)."""
    group = attempts.group
    num_telling = np.count_nonzero(group.std)
    return (attempts.rewards - group.mean) * len(attempts) / max(num_telling, 1)


def grpo_passk(attempts: Attempts) -> np.ndarray:
    """Compute how much each attempt adds to the best reward of its group: the best one gets its lead over the second
    best, the others 0. This is the gradient of pass@k with k the size of the group (Tang et al., arXiv 2503.19595).

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
