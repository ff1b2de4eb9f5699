"""How many groups of trajectories may be under way, and how old they may grow."""

import math
from dataclasses import dataclass
from typing import Literal

from roll.configs.sections.algorithm import AlgorithmConfig

Unfinished = Literal["carry", "drop", "defer"]


@dataclass(frozen=True)
class RolloutBounds:
    """`num_groups` are trained on in a step; `ahead` more may be under way; the weights are published after every
    `sync_interval` steps; no token is older than `max_staleness` steps when it is trained on. Raises ValueError where a
    step could wait for ever: what is under way has to fit into the steps that its age leaves it.

    `unfinished`: what becomes of the other groups when a step has its own. carry: they go on. drop: they are given up
    for good. defer: they are given up, and as soon as a step can be filled with such groups it plays these alone. With
    the latter two `ahead` groups more are started in every step, and none outlives it.

    `grace_s`: so long a step that could take its groups waits for older ones. `additional`: without staleness, so many
    more run from the start in case that others are dropped by the filter; what a step does not need starts again in the
    next one, so that no batch depends on time.

    Example: 8 groups a step that may be 1 step old: at most 16 under way.
    """

    num_groups: int
    ahead: int = 0
    sync_interval: int = 1
    max_staleness: int = 0
    unfinished: Unfinished = "carry"
    grace_s: float = 0.0
    additional: int = 0

    def __post_init__(self) -> None:
        if self.unfinished == "carry" and self.capacity > self.most:
            raise ValueError(
                f"{self.capacity} groups would be in flight, but only {self.most} can be trained on in time"
            )

    @property
    def capacity(self) -> int:
        """Groups that run, are finished, or are taken by a step and not yet published over.

        Example: 8 groups a step and 4 ahead: 12; published every second step: 20.
        """
        return self.sync_interval * self.num_groups + self.ahead

    @property
    def is_in_order(self) -> bool:
        """True if a step takes the first of the groups in the data that are kept, whatever finishes first."""
        return self.unfinished == "carry" and self.max_staleness == 0 and self.capacity == self.num_groups

    @property
    def alternates(self) -> bool:
        """True if no group outlives the step in which it runs: sampling and training take turns."""
        return self.unfinished != "carry" or self.is_in_order

    @property
    def most(self) -> int:
        """Groups that can be trained on before one is too old."""
        return (self.max_staleness + 1) * self.num_groups

    @property
    def leaves_groups(self) -> bool:
        """True if a step may end while groups of its own or of later steps run or wait."""
        return not self.is_in_order or self.additional > 0


def rollout_bounds(config: AlgorithmConfig) -> RolloutBounds:
    """Those of a run. Where no group runs ahead a step has its own, whatever the age of the weights: then the engines'
    versions are not looked at. Raises ValueError as RolloutBounds does."""
    groups, ahead, grace_s = config.num_groups, groups_ahead(config), config.unfinished_grace_s
    if config.runs_ahead:
        return RolloutBounds(groups, ahead, sync_interval(config), oldest_allowed(config), grace_s=grace_s)
    if config.unfinished_groups != "carry":
        return RolloutBounds(groups, ahead, unfinished=config.unfinished_groups, grace_s=grace_s)
    replaces = config.is_use_additional_prompts and not config.rollout_mock.replays
    return RolloutBounds(groups, additional=config.max_additional_running_prompts if replaces else 0)


def sync_interval(config: AlgorithmConfig) -> int:
    """Steps from one publish of the weights to the next."""
    return config.actor_train.model_update_frequency


def groups_ahead(config: AlgorithmConfig) -> int:
    """Example: async_generation_ratio: 0.5 of 5 groups a step are 3."""
    return ahead_by(config.async_generation_ratio, config.num_groups)


def ahead_by(ratio: float, num_groups: int) -> int:
    """Example: ahead_by(0.5, 5) == 3"""
    return math.ceil(round(ratio * num_groups, 6))


def oldest_allowed(config: AlgorithmConfig) -> int:
    """Steps that a token may be old. Example: weights of every second step and a ratio of 0.5: 2."""
    if config.max_staleness is not None:
        return config.max_staleness
    return least_staleness(config.async_generation_ratio, sync_interval(config))


def least_staleness(ratio: float, interval: int) -> int:
    """Steps that a token has to be allowed to be old. Example: least_staleness(0.5, 2) == 2"""
    return math.ceil(interval - 1 + ratio)
