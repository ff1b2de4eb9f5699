"""What workers that learn are asked to do in one step, and what they report."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roll.algorithms.covariance import CovarianceChoice
from roll.algorithms.credit import CreditSettings
from roll.algorithms.idle_rows import IdleRows
from roll.algorithms.loss import Loss
from roll.distributed.executor.blueprint import BatchLimits
from roll.types.metrics import MetricSums
from roll.types.ragged import token_indices


@dataclass(frozen=True)
class TurnValues:
    """One number per turn, flat, with the number of turns of each row id; a padding row beyond their end has none."""

    num_turns: np.ndarray
    values: np.ndarray

    def of(self, rows: np.ndarray) -> TurnValues:
        """Those of these rows, in this order."""
        known = rows[rows < len(self.num_turns)]
        return TurnValues(self.num_turns[known], self.values[token_indices(self.num_turns, known)])


@dataclass(frozen=True)
class RowCredit:
    """What each row earned, by row id, and how it is spread over the row's tokens. A padding row beyond their end
    counts as 0. `turn_values`, if given, are used in place of row values. `teacher_weights`: how much what the teacher
    said of the row counts beside."""

    settings: CreditSettings
    row_values: np.ndarray
    row_weights: np.ndarray | None = None
    turn_values: TurnValues | None = None
    teacher_weights: np.ndarray | None = None

    def of(self, rows: np.ndarray) -> RowCredit:
        """That of these rows, in this order."""
        return replace(
            self,
            row_values=_take(self.row_values, rows),
            row_weights=None if self.row_weights is None else _take(self.row_weights, rows),
            turn_values=None if self.turn_values is None else self.turn_values.of(rows),
            teacher_weights=None if self.teacher_weights is None else _take(self.teacher_weights, rows),
        )


@dataclass(frozen=True)
class TrainJob:
    """One step's training: the rows make `num_updates` chunks of equal size, which are gone through `epochs` times.
    Without credit they are trained on as they are. `idle`: which rows the loss need not see, if it need not see all.
    `choice`: which tokens of an update its objective singles out."""

    loss: Loss
    temperature: float
    num_updates: int
    epochs: int = 1
    credit: RowCredit | None = None
    idle: IdleRows | None = None
    choice: CovarianceChoice | None = None

    def of(self, rows: np.ndarray) -> TrainJob:
        """The job of a rank that holds these rows."""
        return self if self.credit is None else replace(self, credit=self.credit.of(rows))


@dataclass(frozen=True)
class TrainRequest:
    """The job of one rank, whose shard holds `rows`. `counts[u]` micro batches make update u, on all ranks alike, and
    with an expert's rows `expert_counts[u]` more."""

    job: TrainJob
    rows: np.ndarray
    limits: BatchLimits
    counts: tuple[int, ...]
    expert_counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class TrainReport:
    """What one rank says of its updates: sums to be merged over ranks, and what is global already: numbers of the last
    update, and the tokens that all were about, each once."""

    sums: MetricSums
    last: dict[str, float]
    num_tokens: int = 0


def _take(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.where(rows < len(values), values[np.minimum(rows, len(values) - 1)], 0)
