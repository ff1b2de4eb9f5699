"""The sampled tokens of recorded rollouts, with what engine and trainer say of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from roll.distributed.executor.rl_clusters import RLClusters
from roll.distributed.executor.scores import ScoreSet
from roll.distributed.executor.step_rows import StepRows, fetched, rows_of_scores
from roll.rl.records.once import Once
from roll.rl.scoring import share_rows
from roll.types.rollout import Trajectory, TrajectoryGroup
from roll.utils.text import storable
from roll.utils.timing import Timer

_MOST_TOKENS = 2_000  # of a row, its first ones
_DIGITS = 6

RowKey = tuple[int, int, int]
"""Group, attempt, turn."""


@dataclass(frozen=True)
class TokenLogProbs:
    """The first sampled tokens of a row. A log-prob is None if a model gives minus infinity.

    - `texts`: the text of each token by itself
    - `engine`: log-probs of the engine that sampled them
    - `trainer`: log-probs of the trainer before the step's updates
    """

    texts: tuple[str, ...]
    engine: tuple[float | None, ...]
    trainer: tuple[float | None, ...]


class TokenRecords:
    """Every `every` steps, never where that is 0 or less: takes rows before their tokens are given away, and has their
    log-probs after the scoring."""

    def __init__(self, every: int, tokenizer: Callable[[], PreTrainedTokenizerBase]):
        self._every, self._tokenizer = every, Once(tokenizer)
        self._groups: list[TrajectoryGroup] = []
        self._numbers: list[int] = []  # of their rows among those of the step
        self._found: dict[RowKey, TokenLogProbs] = {}

    def take(
        self,
        step: int,
        groups: Sequence[TrajectoryGroup],
        choose: Callable[[Sequence[TrajectoryGroup], int], Sequence[TrajectoryGroup]],
    ) -> None:
        """`groups`: what is trained on, of which `choose` gives those that are recorded. `step`: steps done with this
        one."""
        self._groups, self._numbers, self._found = [], [], {}
        if self._every <= 0 or step % self._every:
            return
        wanted = {group.group_id for group in choose(groups, step)}
        number = 0
        for group in groups:
            if group.group_id in wanted:
                self._numbers += range(number, number + len(group.trajectories))
                (rows,) = fetched([group.trajectories])
                self._groups.append(replace(group, trajectories=tuple(rows)))
            number += len(group.trajectories)

    def compare(
        self, clusters: RLClusters, num_ranks: int, scores: Mapping[str, ScoreSet], temperature: float, timer: Timer
    ) -> None:
        """Records engine's and trainer's log-probs before the training. `scores`: the scores of all rows of the
        step."""
        if not self._groups:
            return
        with timer("token_records"):
            numbers, groups = self._numbers, self._groups
            self._groups = []
            if (old := scores.get("old_log_probs")) is not None:
                found = rows_of_scores(ScoreSet(old.of(np.array(numbers))))
                of_rows = [found[number] for number in numbers]
            else:
                of_rows = _scored(clusters, num_ranks, groups, temperature)
            rows = [(group.group_id, row) for group in groups for row in group.trajectories]
            for (group_id, row), trainer in zip(rows, of_rows, strict=True):
                self._found[group_id, row.index, row.turn] = self._told(row, trainer)

    def of_rows(self) -> Mapping[RowKey, TokenLogProbs]:
        """What is known of the rows of the step."""
        return self._found

    def _told(self, row: Trajectory, trainer: np.ndarray) -> TokenLogProbs:
        places = np.flatnonzero(row.response_mask)[:_MOST_TOKENS]
        texts = self._tokenizer().batch_decode([[token] for token in row.input_ids[places].tolist()])
        return TokenLogProbs(
            texts=tuple(storable(str(text)) for text in texts),
            engine=_plain(row.log_probs[places]),
            trainer=_plain(trainer[places]),
        )


def _scored(
    clusters: RLClusters, num_ranks: int, groups: Sequence[TrajectoryGroup], temperature: float
) -> list[np.ndarray]:
    """What the trainer says of these rows, in their order."""
    rows = StepRows(groups)
    order = np.random.default_rng(0)  # of one update, whose rows stay as they are
    samples = share_rows(rows, np.arange(len(rows)), (1, num_ranks), clusters.actor_train, order)
    with clusters.placement.hold(clusters.actor_train.weights):
        found = rows_of_scores(clusters.actor_train.log_probs(samples, temperature))
    return [found[number] for number in range(len(rows))]


def _plain(values: np.ndarray) -> tuple[float | None, ...]:
    return tuple(round(value, _DIGITS) if math.isfinite(value) else None for value in values.tolist())
