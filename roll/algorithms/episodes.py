"""Advantages of each turn of an episode. Works on row metadata, on the driver: rows hold a whole conversation each, or
one turn each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from roll.algorithms.advantage import AdvantageSettings, group_advantages
from roll.algorithms.normalize import KeyMoments, divide_by_std, moments_by_key
from roll.algorithms.user_code import call_user, one_each
from roll.configs.tables.estimators import estimator_of
from roll.types.batch import RowMeta
from roll.utils.imports import resolve


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
        return estimator_of(self.advantages.estimator).per_turn


@dataclass(frozen=True)
class Turns:
    """The turns of a step's episodes that did not fail, T of them. Those of an episode stand in order, not necessarily
    together."""

    rewards: np.ndarray  # float64: what the environment gave
    returns: np.ndarray  # float64: what the episode earns from the turn on, discounted by `turn_gamma` per turn
    episodes: np.ndarray  # int64
    groups: np.ndarray  # int64
    states: np.ndarray  # int64: equal within a group where the turns met the same observation
    domains: np.ndarray  # text, the same for all unless `by_domain`
    episode_values: np.ndarray  # float32: (R - mean) / std of the turn's episode, R the whole reward
    settings: EpisodeSettings

    def __len__(self) -> int:
        return len(self.rewards)


def episode_advantages(meta: RowMeta, settings: EpisodeSettings) -> tuple[np.ndarray, dict[str, float]]:
    """The advantage of every row from its episode's reward; rows of one episode get the same. float32 [R], metrics.

    Means and deviations are over episodes, however many rows each has.
    """
    _, first, episode = np.unique(meta.trajectory_ids, return_index=True, return_inverse=True)
    domains = meta.domains[first] if settings.by_domain else None
    values, metrics = group_advantages(
        meta.rewards[first],
        meta.group_ids[first],
        settings.advantages,
        domains,
        lengths=np.bincount(episode, meta.response_lengths),
    )
    return values[episode], metrics


def turn_advantages(meta: RowMeta, settings: EpisodeSettings) -> tuple[np.ndarray, dict[str, float]]:
    """The advantage of every turn, flat over the rows' turns, by the estimator's function; 0 for those of failed
    episodes. float64 [sum of num_turns], and metrics."""
    if meta.num_turns is None or meta.turn_rewards is None or meta.state_keys is None:
        raise ValueError(f"adv_estimator {settings.advantages.estimator} needs the rewards of every turn")
    rows = np.repeat(np.arange(len(meta)), meta.num_turns)
    known = ~np.isnan(meta.rewards)[rows]
    rewards, known_rows = meta.turn_rewards[known], rows[known]
    episodes = meta.trajectory_ids[known_rows]
    episode_values, metrics = episode_advantages(meta, settings)
    turns = Turns(
        rewards=rewards,
        returns=discounted_returns(rewards, episodes, settings.turn_gamma),
        episodes=episodes,
        groups=meta.group_ids[known_rows],
        states=meta.state_keys[known_rows],
        domains=meta.domains[known_rows] if settings.by_domain else np.full(len(known_rows), ""),
        episode_values=episode_values[known_rows],
        settings=settings,
    )
    values = np.zeros(len(rows))
    values[known] = _values_of(turns)
    limit = settings.advantages.reward_clip
    return values if limit is None else np.clip(values, -limit, limit), metrics


def _values_of(turns: Turns) -> np.ndarray:
    row, advantages = estimator_of(turns.settings.advantages.estimator), turns.settings.advantages
    assert row.function is not None
    function = cast(Callable[..., np.ndarray], resolve(row.function))
    if not row.is_user_defined:
        return function(turns)
    name = f"adv_estimator: {row.name}"
    return one_each(name, "turns", call_user(name, function, turns, **advantages.args), turns.returns, turns.groups)


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


def gigpo(turns: Turns) -> np.ndarray:
    """Feng et al., arXiv 2505.10978, eq. 3-8: episode_weight x (R - mean) / std over the episodes of a group, R the
    whole reward, plus step_weight x the same for G_k over the turns of a group that met the same state. A state met
    once, like an episode without others, gets 0."""
    settings = turns.settings
    _, keys = np.unique(np.stack([turns.groups, turns.states], axis=1), axis=0, return_inverse=True)
    moments = moments_by_key(turns.returns, keys.ravel())
    mean_type, std_type = settings.advantages.norms
    values = turns.returns if mean_type is None else turns.returns - moments.mean
    by_state = settings.advantages.within_limits(values if std_type is None else divide_by_std(values, moments.std))
    return settings.episode_weight * turns.episode_values + settings.step_weight * by_state


def step_reinforce(turns: Turns) -> np.ndarray:
    """(G_k - b) / s, with b and s the mean and deviation of all turns' G_k in the chosen scope; by default 0 and 1."""
    norms = replace(turns.settings.advantages, reward_clip=None)
    return group_advantages(turns.returns, turns.groups, norms, turns.domains)[0].astype(np.float64)


def agentic_reinforce(turns: Turns) -> np.ndarray:
    """(G_k - b) / s, with b and s the mean and deviation of the episodes' G_0 in the chosen scope."""
    advantages = turns.settings.advantages
    _, first = np.unique(turns.episodes, return_index=True)

    def of_scope(kind: str) -> KeyMoments:
        """Moments of the first turns in the scope of each turn."""
        scopes = {"group": turns.groups, "batch": turns.domains}
        if kind not in scopes:
            raise ValueError(f"adv_estimator agentic_reinforce cannot be normalised by {kind!r}")
        _, holder, index = np.unique(scopes[kind][first], return_index=True, return_inverse=True)
        moments = moments_by_key(turns.returns[first], index)
        at = holder[np.unique(scopes[kind], return_inverse=True)[1]]  # a first turn of the same scope
        return KeyMoments(moments.count[at], moments.mean[at], moments.std[at])

    mean_type, std_type = advantages.norms
    values = turns.returns if mean_type is None else turns.returns - of_scope(mean_type).mean
    return advantages.within_limits(values if std_type is None else divide_by_std(values, of_scope(std_type).std))
