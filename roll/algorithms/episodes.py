"""What each turn of an episode earned. Works on row metadata, on the driver: rows hold a whole conversation each, or
one turn each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roll.algorithms.advantage import AdvantageSettings, group_advantages
from roll.algorithms.normalize import divide_by_std, moments_by_key
from roll.types.batch import RowMeta

PER_TURN_ESTIMATORS = frozenset({"agentic_reinforce", "step_reinforce", "gigpo"})


@dataclass(frozen=True)
class EpisodeSettings:
    """`turn_gamma` discounts from turn to turn. gigpo adds its two parts with the two weights; the others' rewards
    need none. `by_domain`: batch moments are those of the row's own domain."""

    advantages: AdvantageSettings
    turn_gamma: float = 1.0
    episode_weight: float = 1.0
    step_weight: float = 1.0
    by_domain: bool = False

    @property
    def is_per_turn(self) -> bool:
        return self.advantages.estimator in PER_TURN_ESTIMATORS


def episode_advantages(meta: RowMeta, settings: EpisodeSettings) -> tuple[np.ndarray, dict[str, float]]:
    """The advantage of every row from its episode's reward; rows of one episode get the same. float32 [R], metrics.

    Means and deviations are over episodes, however many rows each has.
    """
    _, first, episode = np.unique(meta.trajectory_ids, return_index=True, return_inverse=True)
    domains = meta.domains[first] if settings.by_domain else None
    values, metrics = group_advantages(meta.rewards[first], meta.group_ids[first], settings.advantages, domains)
    return values[episode], metrics


def turn_advantages(meta: RowMeta, settings: EpisodeSettings) -> tuple[np.ndarray, dict[str, float]]:
    """The advantage of every turn, flat over the rows' turns. float64 [sum of num_turns], and metrics.

    G_k is what an episode earns from turn k on, discounted by `turn_gamma` per turn.

    - agentic_reinforce: (G_k - b) / s, with b and s the mean and deviation of the episodes' G_0 in the chosen scope
      (by default 0 and 1).
    - step_reinforce: the same, with b and s over all turns' G_k in the scope.
    - gigpo (Feng et al., arXiv 2505.10978, eq. 3-8): episode_weight x (R - mean) / std over the episodes of a group, R
      the whole reward, plus step_weight x the same for G_k over the turns of a group that met the same state. A state
      met once, like an episode without others, gets 0.
    """
    if meta.num_turns is None or meta.turn_rewards is None or meta.state_keys is None:
        raise ValueError(f"adv_estimator {settings.advantages.estimator} needs the rewards of every turn")
    rows = np.repeat(np.arange(len(meta)), meta.num_turns)
    failed = np.isnan(meta.rewards)[rows]
    returns = discounted_returns(meta.turn_rewards, meta.trajectory_ids[rows], settings.turn_gamma)
    returns = np.where(failed, np.nan, returns)
    estimator = settings.advantages.estimator
    episode_values, metrics = episode_advantages(meta, settings)
    if estimator == "gigpo":
        values = settings.episode_weight * episode_values[rows]
        values = values + settings.step_weight * _by_state(returns, meta, rows, settings.advantages)
    elif estimator == "step_reinforce":
        values = _over_turns(returns, meta, rows, settings)
    else:
        values = _like_first_turns(returns, meta, rows, settings)
    limit = settings.advantages.reward_clip
    if limit is not None:
        values = np.clip(values, -limit, limit)
    return np.where(failed, 0.0, values), metrics


def discounted_returns(rewards: np.ndarray, episodes: np.ndarray, gamma: float) -> np.ndarray:
    """G_k = r_k + gamma * G_(k+1) within each episode. Turns of an episode stand in order, not necessarily together.

    Example: rewards [0 1 2], episodes [7 7 9], gamma .5 -> [.5 1 2].
    """
    returns = np.zeros(len(rewards))
    later: dict[int, float] = {}
    for i in range(len(rewards) - 1, -1, -1):
        key = int(episodes[i])
        later[key] = returns[i] = rewards[i] + gamma * later.get(key, 0.0)
    return returns


def _by_state(returns: np.ndarray, meta: RowMeta, rows: np.ndarray, settings: AdvantageSettings) -> np.ndarray:
    """Each turn against those of the same group that met the same state."""
    assert meta.state_keys is not None
    pairs = np.stack([meta.group_ids[rows], meta.state_keys[rows]], axis=1)
    _, keys = np.unique(pairs, axis=0, return_inverse=True)
    moments = moments_by_key(returns, keys.ravel())
    mean_type, std_type = settings.norms
    values = returns if mean_type is None else returns - moments.mean
    return settings.within_limits(values if std_type is None else divide_by_std(values, moments.std))


def _over_turns(returns: np.ndarray, meta: RowMeta, rows: np.ndarray, settings: EpisodeSettings) -> np.ndarray:
    domains = meta.domains[rows] if settings.by_domain else None
    norms = replace(settings.advantages, reward_clip=None)
    filled, _ = group_advantages(returns, meta.group_ids[rows], norms, domains)
    return filled.astype(np.float64)


def _like_first_turns(returns: np.ndarray, meta: RowMeta, rows: np.ndarray, settings: EpisodeSettings) -> np.ndarray:
    mean_type, std_type = settings.advantages.norms
    _, first = np.unique(meta.trajectory_ids[rows], return_index=True)
    base = np.zeros(len(meta)), np.zeros(len(meta))
    scopes = {
        "group": meta.group_ids,
        "batch": meta.domains if settings.by_domain else np.zeros(len(meta), np.int64),
    }
    for place, kind in enumerate((mean_type, std_type)):
        if kind is None:
            continue
        if kind not in scopes:
            raise ValueError(f"adv_estimator agentic_reinforce cannot be normalised by {kind!r}")
        scope = scopes[kind]
        moments = moments_by_key(returns[first], scope[rows[first]])
        known = {key: i for i, key in enumerate(scope[rows[first]].tolist())}
        at = np.array([known.get(key, -1) for key in scope.tolist()])
        values = (moments.mean, moments.std)[place]
        base[place][at >= 0] = values[at[at >= 0]]
    values = returns - base[0][rows]
    return settings.advantages.within_limits(values if std_type is None else divide_by_std(values, base[1][rows]))
