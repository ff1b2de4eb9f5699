"""The sampled tokens of recorded rollouts, with what engine and trainer say of each."""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from transformers import PreTrainedTokenizerBase

from roll.distributed.executor.clusters import RLClusters
from roll.distributed.executor.jobs import ScoreSet
from roll.distributed.executor.step_rows import StepRows, fetched, rows_of_scores
from roll.types.rollout import Trajectory, TrajectoryGroup
from roll.utils.text import storable
from roll.utils.timing import Timer

# A call that is made once.

T = TypeVar("T")


class Once(Generic[T]):
    """Makes the call when it is called first, lets go of what it needs, and gives the same result ever after."""

    def __init__(self, call: Callable[[], T]):
        self._call: Callable[[], T] | None = call
        self._result: list[T] = []

    def __call__(self) -> T:
        if self._call is not None:
            self._result.append(self._call())
            self._call = None
        return self._result[0]


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
        self._log_probs: dict[RowKey, TokenLogProbs] = {}

    def take(
        self,
        step: int,
        groups: Sequence[TrajectoryGroup],
        choose: Callable[[Sequence[TrajectoryGroup]], Sequence[TrajectoryGroup]],
    ) -> None:
        """`groups`: what is trained on, of which `choose` gives those that are recorded. `step`: steps done with this
        one."""
        self._groups, self._numbers, self._log_probs = [], [], {}
        if self._every <= 0 or step % self._every:
            return
        wanted = {group.group_id for group in choose(groups)}
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
                current_scores = rows_of_scores(ScoreSet(old.of(np.array(numbers))))
                of_rows = [current_scores[number] for number in numbers]
            else:
                of_rows = _scored(clusters, num_ranks, groups, temperature)
            rows = [(group.group_id, row) for group in groups for row in group.trajectories]
            for (group_id, row), trainer in zip(rows, of_rows, strict=True):
                self._log_probs[group_id, row.index, row.turn] = self._log_probs_of(row, trainer)

    def of_rows(self) -> Mapping[RowKey, TokenLogProbs]:
        """Return the log-probs that are known of the rows of the step."""
        return self._log_probs

    def _log_probs_of(self, row: Trajectory, trainer: np.ndarray) -> TokenLogProbs:
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
    """Return the trainer's log-probs of these rows, in their order."""
    rows = StepRows(groups)
    samples = rows.share(np.arange(len(rows)), 1, num_ranks, clusters.actor_train)
    with clusters.placement.hold(clusters.actor_train.weights):
        scores = rows_of_scores(clusters.actor_train.log_probs(samples, temperature))
    return [scores[number] for number in range(len(rows))]


def _plain(values: np.ndarray) -> tuple[float | None, ...]:
    return tuple(round(value, _DIGITS) if math.isfinite(value) else None for value in values.tolist())


# `save_logging_board_dir`: every answer of a step with its tokens and what each model says of them, in the form that RL
# Logging Board shows (JSON, an answer per line).

logger = logging.getLogger(__name__)

COLUMNS = {
    "old_log_probs": "logprobs",
    "ref_log_probs": "ref_logprobs",
    "values": "values",
    "teacher_log_probs": "teacher_logprobs",
}
"""Fields of TokenScores by the name that the board knows them by."""


class LoggingBoard:
    """Writes `step_000012.jsonl` for the rows that the twelfth step trained on, until the disk fails."""

    def __init__(self, directory: Path, tokenizer: PreTrainedTokenizerBase):
        self._directory, self._tokenizer = directory, tokenizer
        self._rows: list[tuple[TrajectoryGroup, Trajectory]] = []
        self._working = True

    def take(self, groups: Sequence[TrajectoryGroup]) -> None:
        """The groups that are trained on, before their tokens are given away."""
        if self._working:
            rows = fetched([group.trajectories for group in groups])
            self._rows = [(group, row) for group, attempts in zip(groups, rows, strict=True) for row in attempts]

    def write(self, step: int, scores: Mapping[str, ScoreSet]) -> None:
        """These rows, which `scores` number in their order. `step`: steps done with this one."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        columns = {COLUMNS[kind]: rows_of_scores(score_set) for kind, score_set in scores.items()}
        path = self._directory / f"step_{step:06d}.jsonl"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as stream:
                for number, (group, row) in enumerate(rows):
                    record = self._log_probs_of(step, group, row, {name: of[number] for name, of in columns.items()})
                    stream.write(json.dumps(record) + "\n")
        except OSError as error:
            self._working = False
            logger.warning("save_logging_board_dir: no longer written; the run continues: %s", error)

    def _log_probs_of(
        self, step: int, group: TrajectoryGroup, row: Trajectory, scores: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        mask = row.response_mask
        prompt, response = row.input_ids[~mask].tolist(), row.input_ids[mask].tolist()
        reward = None if math.isnan(row.reward) else row.reward
        log_probs = {"rollout_logprobs": row.log_probs, "logprobs": row.log_probs}  # where no pass computed others
        return {
            "step": step,
            "group": group.group_id,
            "domain": group.task.domain,
            "prompt": storable(str(self._tokenizer.decode(prompt))),
            "response": storable(str(self._tokenizer.decode(response))),
            "response_tokens": self._tokenizer.convert_ids_to_tokens(response),
            "reward": reward,
            "token_rewards": [0.0] * (len(response) - 1) + [reward or 0.0] if response else [],
            **{name: _listed(values[mask]) for name, values in {**log_probs, **scores}.items()},
        }


def _listed(values: np.ndarray) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]
