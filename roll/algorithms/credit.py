"""Token-level credit: from the value of a row to the advantage of each of its tokens. Runs on the train workers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from roll.algorithms.kl import KLEstimator, estimate_kl
from roll.algorithms.normalize import AllReduceSum, whiten
from roll.algorithms.token_baselines import TokenGroups, less_baselines, path_variances
from roll.configs.tables.estimators import Whitening, estimator_of
from roll.types.batch import SampleBatch, TokenScores, TrainBatch
from roll.types.columns import run_starts, sum_rows, token_indices
from roll.types.metrics import MetricSums

# Sums of future rewards. Flat arrays over the response tokens alone, row after row; float64 inside.


def broadcast_returns(row_rewards: np.ndarray, lengths: np.ndarray, gamma: float) -> np.ndarray:
    """Compute the discounted return of each token if only the last token of its row is rewarded. [sum of lengths].

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


@dataclass(frozen=True)
class CreditSettings:
    """`kl_coef` is the controller's coefficient of this step; it counts only with `add_token_level_kl`. `reward_clip`
    limits each token's reward, the KL included."""

    estimator: str = "grpo"
    gamma: float = 1.0
    lambd: float = 0.95
    add_token_level_kl: bool = False
    kl_coef: float = 0.0
    kl_penalty: KLEstimator = "kl"
    reward_clip: float | None = None
    whiten_rewards: bool = False
    whiten_advantages: Whitening = False
    keeps_zero: bool = False  # whitening by rows does not shift: 0 says that the group's rewards are equal
    advantage_clip: float | None = None
    teacher_alone: bool = False  # rewards of tokens teach nothing either
    teacher_share: float | None = None  # of the mixture with which JS compares; None: the log-ratio counts
    old_is_rollout: bool = False  # the engine's log-probs serve as old ones
    version: int | None = None  # of the weights that learn, where tokens may be of older ones
    max_lag: int | None = None  # older tokens are not trained on

    @property
    def whitening(self) -> Whitening:
        return self.whiten_advantages or estimator_of(self.estimator).whitens


@dataclass(frozen=True)
class TurnValues:
    """One number per turn, flat, with the number of turns of each row id; a padding row beyond their end has none."""

    num_turns: np.ndarray
    values: np.ndarray

    def of(self, rows: np.ndarray) -> TurnValues:
        """Return the values of these rows, in this order."""
        known = rows[rows < len(self.num_turns)]
        return TurnValues(self.num_turns[known], self.values[token_indices(self.num_turns, known)])


@dataclass(frozen=True)
class RowCredit:
    """Credit of each row, by row id, and how it is spread over the row's tokens. A padding row beyond the end counts as
    0. `turn_values`, if set, replace row values. `teacher_weights`: the weight of the teacher's scores of the row,
    beside the credit."""

    settings: CreditSettings
    row_values: np.ndarray
    row_weights: np.ndarray | None = None
    turn_values: TurnValues | None = None
    teacher_weights: np.ndarray | None = None
    groups: TokenGroups | None = None

    def of(self, rows: np.ndarray) -> RowCredit:
        """Return the credit of these rows, in this order."""
        return replace(
            self,
            row_values=_take(self.row_values, rows),
            row_weights=None if self.row_weights is None else _take(self.row_weights, rows),
            turn_values=None if self.turn_values is None else self.turn_values.of(rows),
            teacher_weights=None if self.teacher_weights is None else _take(self.teacher_weights, rows),
            groups=None if self.groups is None else self.groups.of(rows),
        )

    def assign(
        self, samples: SampleBatch, scores: TokenScores, all_reduce_sum: AllReduceSum
    ) -> tuple[TrainBatch, MetricSums]:
        """Call `assign_credit` for rows that are in the order of this credit."""
        turn_values = None if self.turn_values is None else self.turn_values.values
        return assign_credit(
            samples,
            scores,
            self.row_values,
            self.settings,
            all_reduce_sum,
            self.row_weights,
            turn_values,
            self.teacher_weights,
            self.groups,
        )


def _take(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.where(rows < len(values), values[np.minimum(rows, len(values) - 1)], 0)


def assign_credit(
    samples: SampleBatch,
    scores: TokenScores,
    row_values: np.ndarray,
    settings: CreditSettings,
    all_reduce_sum: AllReduceSum,
    row_weights: np.ndarray | None = None,
    turn_values: np.ndarray | None = None,
    teacher_weights: np.ndarray | None = None,
    groups: TokenGroups | None = None,
) -> tuple[TrainBatch, MetricSums]:
    """Compute the returns, advantages and weights that a loss needs, for this rank's rows. Collective if something is
    whitened: a rank without rows takes part too.

    1. Rows of weight 0 lose their response mask, and so do tokens older than `max_lag`; the others' `loss_weights` are
       multiplied by `row_weights`.
    2. The row value is the reward of the row's last response token; `samples.token_rewards` come on top, and
       - kl_coef * KL(old || reference) at every token. Then clip, then whiten (scaled, not shifted: a shift would pay
         every token).
       `turn_values` instead (flat, one per unbroken run of response tokens): the advantage of each turn as it stands,
       spread over its tokens; nothing but the discounted KL comes on top, and row values are not looked at.
    3. Estimators with a critic: generalised advantages from `scores.values`, and returns = advantages + values. All
       others: discounted sum of the rewards from the token on, which with gamma 1 and rewards at the end only is the
       row value at every token. With `groups` less the mean of the group at that token, weighted by W of
       `path_variances`, in which rows of weight 0 count.
    4. Whiten over all ranks' response tokens, of which with `rows` the n of a row count 1 / n each. With
       `teacher_weights`, one per row, add weight * (log-prob of the teacher - old log-prob) to each token's own
       advantage: minus a one-sample estimate of KL(old || teacher), which no other token's credit has a part in
       (on-policy distillation). With `teacher_share` minus the same of the Jensen-Shannon divergence instead. Then
       clip.

    ValueError if scores that the settings need are absent, or a row value is not finite.
    """
    if not np.isfinite(row_values).all():
        raise ValueError("row_values must be finite: a failed attempt gets 0, and its row has no response mask")
    original = samples
    if settings.teacher_alone:
        samples = replace(samples, token_rewards=None)
    lag, metrics = None, MetricSums()
    if settings.version is not None:
        lag = np.where(samples.response_mask, settings.version - samples.policy_versions.astype(np.int64), 0)
        if settings.max_lag is not None:
            samples, lag = _without_old(samples, lag, settings.max_lag, metrics)
    counted, samples = samples, _with_weights(samples, row_weights)
    if groups is None:  # else a row of weight 0 counts in the baselines of its group, so it has returns as well
        counted = samples
    if settings.old_is_rollout:
        scores = replace(scores, old_log_probs=samples.rollout_log_probs)
    tokens, lengths = np.flatnonzero(counted.response_mask), counted.response_lengths
    trained = samples.response_mask[tokens]

    kl = _kl_to_reference(samples, scores, settings, tokens)
    if kl is not None:
        present = samples.response_lengths > 0
        row_kl = sum_rows(kl, lengths)[present] / lengths[present]
        metrics.add("kl_mean", float(row_kl.sum()), int(present.sum()))

    if turn_values is not None:
        row_values = np.zeros(len(samples))
    rewards = _token_rewards(counted, row_values, kl, settings, tokens, metrics)
    if settings.whiten_rewards:
        rewards = whiten(rewards, all_reduce_sum, center=False, weights=trained.astype(np.float64))

    returns = None
    if estimator_of(settings.estimator).needs_critic:
        if scores.values is None:
            raise ValueError(f"adv_estimator {settings.estimator} needs a critic's values")
        values = scores.values[tokens]
        advantages = generalized_advantages(rewards, values, lengths, settings.gamma, settings.lambd)
        # The critic learns the return: GAE's advantage is the return minus the critic's value.
        returns = advantages + values
    elif settings.add_token_level_kl or samples.token_rewards is not None:
        advantages = reward_to_go(rewards, lengths, settings.gamma)
    else:
        last = np.maximum(np.cumsum(lengths) - 1, 0)
        row_rewards = rewards[last] if len(rewards) else np.zeros(len(lengths))
        advantages = broadcast_returns(row_rewards, lengths, settings.gamma)

    if groups is not None:
        weights, places = _on_paths(original, scores, groups, settings.estimator)
        young = counted.response_mask[original.response_mask]  # tokens that are too old keep their places
        advantages = less_baselines(advantages, weights[young], places[young], groups.size, all_reduce_sum)[trained]
        tokens, lengths = tokens[trained], samples.response_lengths
    if turn_values is not None:
        advantages = advantages + _spread_turns(turn_values, original, samples, tokens)

    # The teacher's term is added after whitening, which would change its weight; the clip bounds the sum of both.
    if settings.whitening == "rows":
        per_token = np.repeat(1 / np.maximum(lengths, 1), lengths)
        advantages = whiten(advantages, all_reduce_sum, not settings.keeps_zero, per_token)
    elif settings.whitening:
        advantages = whiten(advantages, all_reduce_sum)
    if teacher_weights is not None:
        gap = _gap_to_teacher(scores, tokens)
        metrics.add("teacher_kl_mean", -float(gap.sum()), len(gap))
        taught = gap if settings.teacher_share is None else _js_advantages(gap, settings.teacher_share)
        advantages = advantages + np.repeat(teacher_weights, lengths) * taught
    if settings.advantage_clip is not None:
        limit = settings.advantage_clip
        metrics.add("advantage_clip_fraction", float((np.abs(advantages) > limit).sum()), len(advantages))
        advantages = np.clip(advantages, -limit, limit)

    metrics.add("advantage_mean", float(advantages.sum()), len(advantages))
    metrics.add("advantage_abs_mean", float(np.abs(advantages).sum()), len(advantages))
    if len(advantages):
        metrics.maximum("advantage_max", float(advantages.max()))
    if returns is not None:
        metrics.add("return_mean", float(returns.sum()), len(returns))

    def scattered(values: np.ndarray) -> np.ndarray:
        out = np.zeros(samples.num_tokens, np.float32)
        out[tokens] = values
        return out

    batch = TrainBatch(
        samples=samples,
        advantages=scattered(advantages),
        old_log_probs=scores.old_log_probs,
        ref_log_probs=scores.ref_log_probs,
        values=scores.values,
        returns=None if returns is None else scattered(returns),
        lag=None if lag is None else np.where(samples.response_mask, lag, 0),
        teacher_targets=None
        if scores.teacher_targets is None
        else scores.teacher_targets[samples.response_mask[original.response_mask]],
        routes=scores.routes,
    )
    return batch, metrics


def _spread_turns(
    turn_values: np.ndarray, original: SampleBatch, samples: SampleBatch, tokens: np.ndarray
) -> np.ndarray:
    """The value of its turn at each of `tokens`; turns are counted before rows of weight 0 lose their mask."""
    starts = run_starts(original.response_mask, original.lengths)
    if int(starts.sum()) != len(turn_values) or not np.isfinite(turn_values).all():
        raise ValueError(f"{len(turn_values)} turn values for {int(starts.sum())} turns, all must be finite")
    return turn_values[(np.cumsum(starts) - 1)[tokens]]


def _with_weights(samples: SampleBatch, row_weights: np.ndarray | None) -> SampleBatch:
    if row_weights is None:
        return samples
    if len(row_weights) != len(samples):
        raise ValueError(f"{len(row_weights)} row weights for {len(samples)} rows")
    has_weight = np.repeat(row_weights > 0, samples.lengths)
    return replace(
        samples,
        response_mask=samples.response_mask & has_weight,
        loss_weights=(samples.loss_weights * row_weights).astype(np.float32),
    )


def _without_old(
    samples: SampleBatch, lag: np.ndarray, max_lag: int, metrics: MetricSums
) -> tuple[SampleBatch, np.ndarray]:
    is_old = lag > max_lag
    metrics.add("masked_stale_fraction", float(is_old.sum()), float(samples.response_mask.sum()))
    return replace(samples, response_mask=samples.response_mask & ~is_old), np.where(is_old, 0, lag)


def _on_paths(
    samples: SampleBatch, scores: TokenScores, groups: TokenGroups, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """W and the place in its group of every response token. ValueError without the log-probs that W needs."""
    if scores.old_log_probs is None or scores.halved_log_probs is None:
        raise ValueError(f"adv_estimator {name} needs old log-probs, and those at half the temperature")
    mask, lengths = samples.response_mask, samples.response_lengths
    weights = path_variances(scores.old_log_probs[mask], scores.halved_log_probs[mask], lengths)
    return weights, groups.places(lengths)


def _kl_to_reference(
    samples: SampleBatch, scores: TokenScores, settings: CreditSettings, tokens: np.ndarray
) -> np.ndarray | None:
    """KL estimates at the response tokens; None when they are neither needed nor to be had."""
    if scores.old_log_probs is None or scores.ref_log_probs is None:
        if settings.add_token_level_kl:
            raise ValueError("add_token_level_kl needs old and reference log-probs")
        return None
    old, ref = (torch.from_numpy(x[tokens].astype(np.float64)) for x in (scores.old_log_probs, scores.ref_log_probs))
    return estimate_kl(old, ref, settings.kl_penalty).numpy()


def _gap_to_teacher(scores: TokenScores, tokens: np.ndarray) -> np.ndarray:
    """log q - log p at the response tokens, of the teacher and of the policy that sampled. float64."""
    if scores.old_log_probs is None or scores.teacher_log_probs is None:
        raise ValueError("on-policy distillation needs old log-probs and the teacher's")
    return scores.teacher_log_probs[tokens].astype(np.float64) - scores.old_log_probs[tokens]


def _js_advantages(gap: np.ndarray, share: float) -> np.ndarray:
    """Minus (1 - share) log(p / m), m = share q + (1 - share) p, from log q - log p at sampled tokens: the policy
    gradient with these advantages is minus the gradient of share KL(q | m) + (1 - share) KL(p | m).

    Example: share .5: p .2 and q .8 give .5 log 2.5 = .458, p .8 and q .2 give .5 log .625 = -.235.
    """
    return (1 - share) * np.logaddexp(gap + np.log(share), np.log1p(-share))


def _token_rewards(
    samples: SampleBatch,
    row_values: np.ndarray,
    kl: np.ndarray | None,
    settings: CreditSettings,
    tokens: np.ndarray,
    metrics: MetricSums,
) -> np.ndarray:
    """The reward of each response token, clipped. float64 [number of response tokens]."""
    lengths = samples.response_lengths
    rewards = np.zeros(len(tokens))
    rewards[(np.cumsum(lengths) - 1)[lengths > 0]] = row_values[lengths > 0]
    if samples.token_rewards is not None:
        rewards += samples.token_rewards[tokens]
    if settings.add_token_level_kl and kl is not None:
        rewards -= settings.kl_coef * kl
    if settings.reward_clip is not None:
        limit = settings.reward_clip
        metrics.add("token_reward_clip_fraction", float((np.abs(rewards) > limit).sum()), len(rewards))
        rewards = np.clip(rewards, -limit, limit)
    return rewards
