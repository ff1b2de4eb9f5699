"""What goes to RL Logging Board: each answer's own tokens, with what each model says of them."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roll.rl.records import token_records as logging_board
from roll.rl.records.token_records import LoggingBoard
from roll.types.rollout import Task, Trajectory, TrajectoryGroup


class Letters:
    """A tokenizer whose token n is the n-th letter."""

    def decode(self, ids: list[int]) -> str:
        return "".join(self.convert_ids_to_tokens(ids))

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [chr(ord("a") + number) for number in ids]


def row(ids: list[int], num_prompt: int, reward: float, **more: Any) -> Trajectory:
    mask = np.arange(len(ids)) >= num_prompt
    return Trajectory(
        input_ids=np.array(ids, np.int32),
        response_mask=mask,
        log_probs=np.where(mask, -0.5, 0).astype(np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        reward=reward,
        finish_reason="stop",
        **more,
    )


GROUP = TrajectoryGroup(
    Task("row-0", "math", np.array([0, 1], np.int32)),
    5,
    (row([0, 1, 2, 3], 2, 1.5), row([0, 1, 4], 2, float("nan"), index=1, failure="no verdict")),
)


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoggingBoard:
    """With scores that are numbers by row, wherever they were computed."""
    monkeypatch.setattr(logging_board, "rows_of_scores", lambda found: found)
    return LoggingBoard(tmp_path / "board", Letters())  # type: ignore[arg-type]


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_answer_stands_with_its_own_tokens_and_what_each_model_says_of_them(
    board: LoggingBoard, tmp_path: Path
) -> None:
    board.take([GROUP])
    scores: dict[str, Any] = {
        "old_log_probs": {0: np.array([9, 9, -1, -2.5]), 1: np.array([9, 9, float("-inf")]), 2: np.zeros(3)},
        "ref_log_probs": {0: np.array([9, 9, -3, -4]), 1: np.array([9, 9, -5])},
    }
    board.write(12, scores)
    first, second = written(tmp_path / "board" / "step_000012.jsonl")
    assert first == {
        "step": 12,
        "group": 5,
        "domain": "math",
        "prompt": "ab",
        "response": "cd",
        "response_tokens": ["c", "d"],
        "reward": 1.5,
        "token_rewards": [0.0, 1.5],
        "rollout_logprobs": [-0.5, -0.5],
        "logprobs": [-1.0, -2.5],
        "ref_logprobs": [-3.0, -4.0],
    }
    assert (second["reward"], second["token_rewards"], second["logprobs"]) == (None, [0.0], [None])


def test_a_step_that_trains_on_nothing_leaves_no_file_and_a_full_disk_ends_the_records(
    board: LoggingBoard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    board.write(1, {})
    assert not (tmp_path / "board").exists()
    (tmp_path / "board").write_text("a file is in the way")
    with caplog.at_level(logging.WARNING):
        for step in (2, 3):
            board.take([GROUP])
            board.write(step, {})
    assert len(caplog.records) == 1 and "no longer written" in caplog.text
