"""The rows of a step on their way to the ranks: tokens that are here are put into the object store, of those that are
there already the ranks put their shards together themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

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

    def share(self, rows: np.ndarray, num_updates: int, num_ranks: int, cluster: TrainCluster) -> SampleSet:
        """These rows, as many as divide into updates and ranks, balanced over the data-parallel ranks of the cluster;
        where it computes rows that begin alike as a tree, those of a group together."""
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


def texts_of(rows: Sequence[Trajectory]) -> list[RowTexts]:
    """Return the texts of each row."""
    stored = stored_among(rows)
    texts = dict(zip(stored, texts_at(list(stored.values())), strict=True))
    return [texts[i] if i in texts else RowTexts(row.response_text, turns=row.turns) for i, row in enumerate(rows)]


def texts_at(places: Sequence[Place]) -> list[RowTexts]:
    """The same of stored rows."""
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
        raise WorkerError(f"sampled answers are lost from the object store: {describe(error)}") from error
