"""The rows of a step, as the roles that learn have them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roll.distributed.executor.roles import TrainCluster
from roll.distributed.executor.step_rows import StepRows
from roll.types.batch import RowMeta, SampleSet


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
