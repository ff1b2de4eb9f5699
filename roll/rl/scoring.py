"""The rows of a step, as the roles that learn have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from roll.configs.plan.batch_plan import BatchPlan
from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.executor.roles import TrainCluster
from roll.distributed.executor.step_rows import StepRows
from roll.distributed.scheduler.rollout_core import StepGroups
from roll.rl.metrics import kept_share, updates_of
from roll.types.batch import RowMeta, SampleSet

ChooseRows = Callable[[int, int, np.random.Generator], np.ndarray]
"""Ids of the rows to train on, of so many rows, in so many parts: updates times ranks."""


@dataclass(frozen=True)
class StepSamples:
    """One step's rows, sharded for each role that learns from them, and the updates that each makes of them in an
    epoch."""

    policy: SampleSet
    policy_updates: int
    critic: SampleSet | None
    critic_updates: int
    kept_share: float = 1.0  # of the sampled rows, where a filter drops some

    @property
    def meta(self) -> RowMeta:
        return self.policy.meta


def share_rows(
    sampled: StepRows,
    rows: np.ndarray,
    updates_and_ranks: tuple[int, int],
    cluster: TrainCluster,
    random: np.random.Generator,
) -> SampleSet:
    """These rows in updates and ranks of a role; padding rows fill the last ones."""
    num_updates, num_ranks = updates_and_ranks
    missing = -len(rows) % (num_updates * num_ranks)
    if missing:
        rows = np.concatenate([rows, np.arange(len(sampled), len(sampled) + missing)])
    if num_updates > 1:
        rows = random.permutation(rows)
    return sampled.share(rows, num_updates, num_ranks, cluster)


def gathered(
    clusters: RLClusters, plan: BatchPlan, trained: StepGroups, choose: ChooseRows, seed: Sequence[int]
) -> StepSamples:
    """Flat rows of the kept groups, shared out to the ranks that will train on them. Rows that do not fill the updates
    are padded with rows that have nothing to train on, which cannot change the gradient. The critic trains on the rows
    of the policy: each needs the other's scores of them."""
    sampled, num_kept, share = StepRows(trained.kept), len(trained.kept), kept_share(trained)
    actor, critic = plan.actor_train, plan.critic
    updates = updates_of(actor.updates_per_epoch, num_kept, plan.num_groups)
    random = np.random.default_rng(seed)
    rows = choose(len(sampled), updates * actor.dp_size, random)
    policy = share_rows(sampled, rows, (updates, actor.dp_size), clusters.actor_train, random)
    if critic is None:
        return StepSamples(policy, updates, None, 0, share)
    critic_updates = updates_of(critic.updates_per_epoch, num_kept, plan.num_groups)
    if (critic.dp_size, critic_updates) == (actor.dp_size, updates):
        return StepSamples(policy, updates, policy, critic_updates, share)
    assert clusters.critic is not None
    random = np.random.default_rng(seed)
    others = share_rows(sampled, rows, (critic_updates, critic.dp_size), clusters.critic, random)
    return StepSamples(policy, updates, others, critic_updates, share)
