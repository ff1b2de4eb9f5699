"""The rows of a step on their way to the ranks, which put their shards together from what is in the object store."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from roll.configs.plan.batch_plan import BatchPlan
from roll.distributed.executor.clusters import RLClusters
from roll.distributed.executor.jobs import ScoreSet
from roll.distributed.executor.roles import TrainCluster, share
from roll.errors import TokensElsewhere, WorkerError, describe
from roll.types.batch import RowMeta, SampleBatch, SampleSet
from roll.types.collate import RowTable, collate_groups, padding_rows, row_columns, row_meta, sampled_rows, split_rows
from roll.types.packing import groups_by_rank, rows_by_rank
from roll.types.rollout import LocalRow, Place, StoredRow, Trajectory, TrajectoryGroup, stored_among
from roll.types.texts import RowTexts


class StepRows:
    """Rows by number, in the order of the groups; numbers beyond the last are padding rows. `meta` says what is known
    of each without its tokens, `parts` of their rewards included."""

    def __init__(self, groups: Sequence[TrajectoryGroup], parts: Sequence[str] = ()):
        self.meta: RowMeta = row_meta(groups, parts)
        self._groups = groups
        self._batch: SampleBatch | None = None
        self._pieces: list[object] = []
        self._table: RowTable | None = None
        trajectories = [t for group in groups for t in group.trajectories]
        if places := stored_among(trajectories):
            self._table = self._tabulate(trajectories, places)
        else:
            self._batch = collate_groups(groups)

    def __len__(self) -> int:
        return len(self.meta)

    def share(
        self,
        rows: np.ndarray,
        num_updates: int,
        num_ranks: int,
        cluster: TrainCluster,
        random: np.random.Generator | None = None,
    ) -> SampleSet:
        """These rows in updates, balanced over the data-parallel ranks of the cluster; where it computes rows that
        begin alike as a tree, those of a group together. Padding rows fill the last update; `random` shuffles rows that
        make several."""
        missing = -len(rows) % (num_updates * num_ranks)
        if missing:
            rows = np.concatenate([rows, np.arange(len(self), len(self) + missing)])
        if random is not None and num_updates > 1:
            rows = random.permutation(rows)
        num_padding = max(0, int(rows.max()) + 1 - len(self))
        shortest = int(np.argmin(self.meta.lengths))
        lengths = np.append(self.meta.lengths, np.repeat(self.meta.lengths[shortest], num_padding))
        if cluster.shares_prefixes:
            response_lengths = np.append(self.meta.response_lengths, np.zeros(num_padding, np.int64))
            groups = np.append(self.meta.group_ids, np.repeat(self.meta.group_ids[shortest], num_padding))
            by_rank = groups_by_rank(lengths, response_lengths, groups, rows, num_updates, num_ranks)
        else:
            by_rank = rows_by_rank(lengths, rows, num_updates, num_ranks)
        if self._batch is not None:
            batch = self._batch
            if num_padding:
                batch = SampleBatch.concatenate([batch, padding_rows(batch, num_padding)])
            return SampleSet(self.meta, share(batch, by_rank))
        assert self._table is not None
        tables = [self._table.take(rows, shortest) for rows in by_rank]
        return SampleSet(self.meta, cluster.assemble(by_rank, tables, self._pieces))

    def _tabulate(self, trajectories: Sequence[Trajectory], stored: Mapping[int, StoredRow]) -> RowTable:
        """Put rows that came with their tokens into one more piece."""
        number_of: dict[object, int] = {}
        here: list[LocalRow] = []
        pieces, places = np.zeros(len(trajectories), np.int64), np.zeros(len(trajectories), np.int64)
        for row, trajectory in enumerate(trajectories):
            place = stored.get(row)
            if place is None:
                pieces[row], places[row] = -1, len(here)
                here.append(trajectory.here)
                continue
            if place.tokens not in number_of:
                number_of[place.tokens] = len(self._pieces)
                self._pieces.append(place.tokens)
            pieces[row], places[row] = number_of[place.tokens], place.row
        if here:
            pieces[pieces < 0] = len(self._pieces)
            self._pieces.append(ray.put(sampled_rows(here)))
        failed = np.array([t.failure is not None for t in trajectories])
        return RowTable(pieces=pieces, places=places, failed=failed, **row_columns(self._groups))


# One step's rows for the roles that learn.

ChooseRows = Callable[[int, int, np.random.Generator], np.ndarray]
"""Ids of the rows to train on, of so many rows, in so many parts: updates times ranks."""


@dataclass(frozen=True)
class StepSamples:
    """One step's rows, sharded for each role that learns from them, and the updates of an epoch."""

    policy: SampleSet
    policy_updates: int
    critic: SampleSet | None
    critic_updates: int
    kept_fraction: float = 1.0  # of the sampled rows, where a filter drops some

    @property
    def meta(self) -> RowMeta:
        return self.policy.meta


def updates_of(planned: int, num_kept: int, num_groups: int) -> int:
    """The updates of an epoch over `num_kept` of `num_groups` groups: in proportion, so that an update has as many
    samples as without the filter, and at least one."""
    return max(1, math.ceil(planned * num_kept / num_groups))


def gathered(
    clusters: RLClusters,
    plan: BatchPlan,
    groups: Sequence[TrajectoryGroup],
    choose: ChooseRows,
    seed: Sequence[int],
    parts: Sequence[str] = (),
    kept_fraction: float = 1.0,
) -> StepSamples:
    """Flat rows of the groups to train on, shared out to the ranks that will train on them. Rows that do not fill the
    updates are padded with rows that have nothing to train on, which cannot change the gradient. The critic trains on
    the rows of the policy: each needs the other's scores of them. `parts`: of rewards, which the estimator compares."""
    sampled, num_kept = StepRows(groups, parts), len(groups)
    actor, critic = plan.actor_train, plan.critic
    updates = updates_of(actor.updates_per_epoch, num_kept, plan.num_groups)
    random = np.random.default_rng(seed)
    rows = choose(len(sampled), updates * actor.dp_size, random)
    policy = sampled.share(rows, updates, actor.dp_size, clusters.actor_train, random)
    if critic is None:
        return StepSamples(policy, updates, None, 0, kept_fraction)
    critic_updates = updates_of(critic.updates_per_epoch, num_kept, plan.num_groups)
    if (critic.dp_size, critic_updates) == (actor.dp_size, updates):
        return StepSamples(policy, updates, policy, critic_updates, kept_fraction)
    assert clusters.critic is not None
    others = sampled.share(rows, critic_updates, critic.dp_size, clusters.critic, np.random.default_rng(seed))
    return StepSamples(policy, updates, others, critic_updates, kept_fraction)


# Rows and scores that somebody must read here.


def texts_of(rows: Sequence[Trajectory]) -> list[RowTexts]:
    stored = stored_among(rows)
    texts = dict(zip(stored, texts_at(list(stored.values())), strict=True))
    return [texts[i] if i in texts else RowTexts(row.response_text, turns=row.turns) for i, row in enumerate(rows)]


def texts_at(places: Sequence[Place]) -> list[RowTexts]:
    texts = _get(place.texts for place in places)
    return [texts[place.texts][place.row] for place in places]


def fetched(groups: Sequence[Sequence[Trajectory]]) -> list[list[Trajectory]]:
    """These rows with their tokens and texts, for who must read them whole. Each handle is read once, whatever the
    number of rows. Raises WorkerError where they are lost, TokensElsewhere where there are none (a simulated run)."""
    stored = [stored_among(group) for group in groups]
    places = [place for group in stored for place in group.values()]
    tokens, texts = _get(place.tokens for place in places), _get(place.texts for place in places)

    def content(place: Place) -> LocalRow:
        (columns,) = split_rows(tokens[place.tokens].select(np.array([place.row])))
        said = texts[place.texts][place.row]
        return LocalRow(**columns, response_text=said.response_text, turns=said.turns)

    return [
        [replace(row, content=content(places[i])) if i in places else row for i, row in enumerate(group)]
        for group, places in zip(groups, stored, strict=True)
    ]


def rows_of_scores(scores: ScoreSet) -> dict[int, np.ndarray]:
    """The scores of each row by its number, one per token; those of padding rows are there as well."""
    values = _get(piece.handle for piece in scores.pieces)
    by_row: dict[int, np.ndarray] = {}
    for piece in scores.pieces:
        parts = np.split(values[piece.handle], np.cumsum(piece.lengths)[:-1])
        by_row.update(zip(piece.rows.tolist(), parts, strict=True))
    return by_row


def _get(handles: Iterable[object]) -> dict[object, Any]:
    distinct: list[Any] = list(dict.fromkeys(handles))
    if any(handle is None for handle in distinct):
        raise TokensElsewhere(
            "these rows have no tokens or texts to read: they belong to a simulated run, or to a reply that has not "
            "arrived. Read them of rows that a rollout has returned."
        )
    try:
        return dict(zip(distinct, ray.get(distinct), strict=True)) if distinct else {}
    except RayError as error:
        raise WorkerError(f"sampled responses are lost from the object store: {describe(error)}") from error
