"""Metrics of what a step sampled and kept, and alarms of few groups and of engines that disagree with the trainer."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from roll.algorithms.advantage import reward_metrics
from roll.distributed.scheduler.filters import length_bias
from roll.distributed.scheduler.rollout_core import GroupBacklog, StepGroups
from roll.errors import AlgorithmError, StrategyError
from roll.rl.parts import Metrics, StepContext, StepPart
from roll.types.rollout import TrajectoryGroup

# What a step's rollouts were like: rewards, lengths, how they ended, how old the policy was.


def rollout_metrics(taken: StepGroups, trained: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
    """Metrics under `rollout/` of all sampled groups; `trained` are those that the step learns from. Rewards and
    response lengths are over attempts that did not fail, however many rows an attempt has; `staleness` counts the steps
    between the version that sampled a token and the one this step trains."""
    groups, groups_left = taken.sampled, taken.backlog or GroupBacklog()
    rows = [t for group in groups for t in group.trajectories]
    lengths = np.concatenate([group.response_lengths[~np.isnan(group.rewards)] for group in groups])
    num_tokens = np.array([t.facts.num_tokens for t in rows])
    num_given = num_tokens - [t.facts.num_sampled for t in rows]
    sampled = [t.facts for t in rows if t.facts.num_sampled and t.facts.oldest_version >= 0]
    metrics = {
        "rollout/failed_fraction": float(np.mean([t.failure is not None for g in groups for t in g.attempts])),
        "rollout/truncated_fraction": float(np.mean([t.finish_reason == "length" for t in rows])),
        "rollout/prompt_length_mean": float(num_given.mean()),
        "rollout/num_tokens": float(num_tokens.sum()),
    }
    if len(lengths):
        metrics["rollout/response_length_mean"] = float(lengths.mean())
        metrics["rollout/response_length_max"] = float(lengths.max())
    if (bias := length_bias([*groups, *groups_left.results], trained, groups_left.cut)) is not None:
        metrics["rollout/length_bias"] = bias
    if sampled:
        mean = np.average([facts.mean_version for facts in sampled], weights=[facts.num_sampled for facts in sampled])
        metrics["rollout/staleness_mean"] = float(step - mean)
        metrics["rollout/staleness_max"] = float(step - min(facts.oldest_version for facts in sampled))
    greedy = np.array([np.nan if group.greedy_reward is None else group.greedy_reward for group in groups])
    if not np.isnan(greedy).all():
        metrics["rollout/greedy_reward_mean"] = float(np.nanmean(greedy))
    metrics |= reward_means("rollout/reward_mean", groups, groups)
    if taken.backlog is not None:
        counts = ("running", "finished", "cancelled", "deferred")
        metrics |= {f"rollout/{name}_groups": float(getattr(groups_left, name)) for name in counts}
    return metrics | _means_of_user_metrics(groups)


def reward_means(name: str, groups: Sequence[TrajectoryGroup], sampled: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """The mean reward of these groups in each domain, where several were sampled. Each side of an attempt counts."""
    rewards: dict[str, list[np.ndarray]] = defaultdict(list)
    for group in groups:
        rewards[group.task.domain] += [side.rewards[~np.isnan(side.rewards)] for side in group.by_side]
    joined = {domain: np.concatenate(values) for domain, values in sorted(rewards.items())}
    several = len({group.task.domain for group in sampled}) > 1
    return {f"{name}/{domain}": float(values.mean()) for domain, values in joined.items() if several and len(values)}


def _means_of_user_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        for trajectory in group.trajectories:
            for name, value in trajectory.metrics.items():
                values[name].append(value)
    return {f"rollout/{name}_mean": float(np.mean(v)) for name, v in sorted(values.items())}


logger = logging.getLogger(__name__)

FEW = 0.25  # of a step's groups; below this, an update follows a handful of prompts


def replace_empty(groups: StepGroups, on_empty: str, num_groups: int, step: int) -> StepGroups:
    """The groups to train on, in place of `groups`, and the others. If the filter kept none, `on_empty` decides;
    trained on are then `num_groups`, the first in the data. Raises AlgorithmError where the run is to end."""
    if groups.groups or on_empty == "skip_step":
        return groups
    if on_empty == "fail":
        raise AlgorithmError(
            f"step {step + 1}: the filter dropped all {len(groups.dropped)} groups, and on_empty is fail. Look at the "
            "filter's thresholds and at is_use_additional_prompts, or let on_empty be skip_step or train_all."
        )
    ordered = sorted(groups.dropped, key=lambda group: group.group_id)
    return StepGroups(ordered[:num_groups], ordered[num_groups:])


def filter_metrics(groups: StepGroups, trained: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Return metrics of what was sampled, how much of it was kept, and how much is trained on, all under `rollout/`."""
    sampled = groups.sampled
    compared = [side for group in sampled for side in group.by_side]
    rewards = np.concatenate([side.rewards for side in compared])
    ids = np.repeat(np.arange(len(compared)), [len(side.rewards) for side in compared])
    rows = [t for group in trained for t in group.trajectories]
    num_trained = sum(t.failure is None and t.facts.num_sampled > 0 for t in rows)
    metrics = reward_metrics(rewards, ids) | {
        "dropped_groups": float(len(groups.dropped)),
        "kept_groups": float(len(groups.groups)),
        "kept_groups_fraction": len(groups.groups) / len(sampled),
        "trained_rows_fraction": num_trained / sum(len(group.trajectories) for group in sampled),
    }
    if (bias := _mean_length(groups.groups) / (_mean_length(sampled) or 1.0)) > 0:
        metrics["filter_length_bias"] = bias
    by_domain = reward_means("rollout/kept_reward_mean", trained, sampled)
    return {f"rollout/{name}": value for name, value in metrics.items()} | by_domain


def _mean_length(groups: Sequence[TrajectoryGroup]) -> float:
    """Mean response length of the attempts that did not fail; 0 without any."""
    lengths = [n for g in groups for n, t in zip(g.response_lengths, g.attempts, strict=True) if t.failure is None]
    return float(np.mean(lengths)) if lengths else 0.0


def kept_fraction(groups: StepGroups) -> float:
    rows, sampled = (sum(len(g.trajectories) for g in some) for some in (groups.groups, groups.sampled))
    return rows / sampled


def scaled_to_kept(metrics: Mapping[str, float], share: float) -> dict[str, float]:
    """Metrics of credit, which sees the kept rows alone (this share of all), under names that say so."""
    named = {f"kept_{name}" if name in REWARD_METRICS else name: value for name, value in metrics.items()}
    if "trained_rows_fraction" in named:
        named["trained_rows_fraction"] *= share
    return named


REWARD_METRICS = frozenset(reward_metrics(np.zeros(2), np.zeros(2)))


class FewGroupsAlarm:
    """Says it in every step whose groups were all dropped, and once when they begin to be few."""

    def __init__(self) -> None:
        self._is_on = False

    def check(self, groups: StepGroups, num_groups: int, step: int, on_empty: str) -> None:
        num_passed = len(groups.groups)
        if not num_passed:
            logger.warning(
                "step %d: the filter dropped all %d groups, so the step %s (on_empty: %s). Look at "
                "rollout/reward_mean, at the filter's thresholds, and at is_use_additional_prompts.",
                step + 1,
                len(groups.dropped),
                "trains on what was dropped" if on_empty == "train_all" else "makes no update",
                on_empty,
            )
        elif num_passed < FEW * num_groups and not self._is_on:
            logger.warning(
                "step %d: the filter kept %d groups where %d are planned. Its updates are as large as planned, at the "
                "full learning rate, and there are fewer of them; the last may be small. See rollout/kept_groups, and "
                "is_use_additional_prompts.",
                step + 1,
                num_passed,
                num_groups,
            )
        self._is_on = bool(num_passed) and num_passed < FEW * num_groups


# Alarms of a run whose engines and trainer disagree.

GAP = "train_infer/log_prob_diff_mean"
GAP_MAX = "train_infer/log_prob_diff_max"


class GapAlarm(StepPart):
    """Says it once when rollout engine and trainer begin to disagree, and again if they do so after they agreed."""

    def __init__(self, threshold: float, keeps_kv: bool = False, runs_ahead: bool = False, samples_anew: bool = True):
        """`keeps_kv`: answers go on over keys and values of old weights, which is a difference in itself. `runs_ahead`:
        only tokens of the weights that learn are compared. Elsewhere all of them are, which tells something where the
        engines have these weights and rollouts are not recorded ones (`samples_anew`)."""
        self._threshold, self._runs_ahead, self._samples_anew = threshold, runs_ahead, samples_anew
        self._cause = (
            "With kv_on_update: keep their tokens are sampled over keys and values of older weights: recompute avoids "
            "that, and a lower learning_rate makes the difference smaller"
            if keeps_kv
            else "Rollout engine and trainer disagree about the sampled tokens: compare their dtypes and model "
            "settings, or correct for it with train_infer_correction"
        )
        self._is_on = False

    def before_publish(self, at: StepContext, metrics: Metrics) -> None:
        has_weights = self._samples_anew and at.engine_version == at.step
        if GAP in metrics and (self._runs_ahead or has_weights):  # else weights differ, and so should log-probs
            self.check(metrics[GAP])

    def check(self, difference: float) -> None:
        if difference > self._threshold and not self._is_on:
            logger.warning(
                "%s is %.3g, above log_prob_diff_warning: %g. %s.",
                GAP,
                difference,
                self._threshold,
                self._cause,
            )
        self._is_on = difference > self._threshold


class ExactAlarm(StepPart):
    """Ends a run with `exact_log_probs` in which engine and trainer gave a token of the present weights two numbers."""

    def __init__(self, runs_ahead: bool):
        """`runs_ahead`: only tokens of the weights that learn are compared, whatever the engines have by now."""
        self._runs_ahead = runs_ahead

    def before_publish(self, at: StepContext, metrics: Metrics) -> None:
        is_of_weights = self._runs_ahead or at.engine_version == at.step
        if is_of_weights and metrics.get(GAP_MAX, 0.0):
            raise StrategyError(
                f"exact_log_probs: {GAP_MAX} is {metrics[GAP_MAX]:.3g} in step {at.step + 1}, and was to be 0: engine "
                "and trainer computed with other kernels or other weights. Run both on the same kind of machine with "
                "the same OMP_NUM_THREADS, or set exact_log_probs to false"
            )
