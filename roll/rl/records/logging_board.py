"""`save_logging_board_dir`: every answer of a step with its tokens and what each model says of them, in the form that
RL Logging Board shows (JSON, an answer per line)."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from roll.distributed.executor.scores import ScoreSet
from roll.distributed.executor.step_rows import fetched, rows_of_scores
from roll.types.rollout import Trajectory, TrajectoryGroup
from roll.utils.text import storable

logger = logging.getLogger(__name__)

COLUMNS = {
    "old_log_probs": "logprobs",
    "ref_log_probs": "ref_logprobs",
    "values": "values",
    "teacher_log_probs": "teacher_logprobs",
}
"""Fields of TokenScores by the name that the board knows them by."""


class LoggingBoard:
    """Writes `step_000012.jsonl` for the rows that the twelfth step trained on. A disk that fails ends the records, not
    the run."""

    def __init__(self, directory: Path, tokenizer: PreTrainedTokenizerBase):
        self._directory, self._tokenizer = directory, tokenizer
        self._rows: list[tuple[TrajectoryGroup, Trajectory]] = []
        self._working = True

    def take(self, groups: Sequence[TrajectoryGroup]) -> None:
        """The groups that are trained on, before their tokens are given away."""
        if self._working:
            rows = fetched([group.trajectories for group in groups])
            self._rows = [(group, row) for group, found in zip(groups, rows, strict=True) for row in found]

    def write(self, step: int, scores: Mapping[str, ScoreSet]) -> None:
        """These rows, which `scores` number in their order. `step`: steps done with this one."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        columns = {COLUMNS[kind]: rows_of_scores(found) for kind, found in scores.items()}
        path = self._directory / f"step_{step:06d}.jsonl"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as stream:
                for number, (group, row) in enumerate(rows):
                    told = self._told(step, group, row, {name: of[number] for name, of in columns.items()})
                    stream.write(json.dumps(told) + "\n")
        except OSError as error:
            self._working = False
            logger.warning("save_logging_board_dir: no longer written; the run continues: %s", error)

    def _told(
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
            **{name: _plain(values[mask]) for name, values in {**log_probs, **scores}.items()},
        }


def _plain(values: np.ndarray) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]
