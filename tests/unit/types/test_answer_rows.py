"""Rows that are made for all answers to a prompt at once are those that a loop over their tokens makes."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from roll.types.rollout import Generation, Trajectory, local_rows

PROMPT = np.array([5, 6, 7], np.int32)


def answer(length: int, *versions: int) -> Generation:
    """Of so many tokens; the versions in turn, as often as they fill it."""
    return Generation(
        np.arange(10, 10 + length, dtype=np.int32),
        -np.arange(length, dtype=np.float32),
        np.sort(np.resize(np.array(versions, np.int32), length)),
        "stop",
    )


def looped(generation: Generation, prompt: np.ndarray) -> dict[str, list[Any]]:
    count = len(prompt)
    return {
        "input_ids": [*prompt.tolist(), *generation.token_ids.tolist()],
        "response_mask": [False] * count + [True] * generation.num_tokens,
        "log_probs": [0.0] * count + generation.log_probs.tolist(),
        "policy_versions": [-1] * count + generation.policy_versions.tolist(),
    }


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:0]], ids=["prompt", "no prompt"])
@pytest.mark.parametrize(
    "answers",
    [
        [answer(4, 3), answer(1, 3), answer(2, 3)],
        [answer(4, 3), answer(4, 4)],
        [answer(5, 1, 2, 4), answer(2, 2)],
        [answer(0, 0), answer(3, 2)],
        [answer(0, 0)],
        [answer(2, -1)],
        [],
    ],
    ids=["one version", "two versions", "versions within", "an empty one", "empty", "no version", "none"],
)
def test_rows_of_a_group_are_those_of_a_loop(answers: list[Generation], prompt: np.ndarray) -> None:
    rows = local_rows(prompt, answers, [""] * len(answers), ())
    assert len(rows) == len(answers)
    for row, generation in zip(rows, answers, strict=True):
        made = Trajectory(reward=1.0, finish_reason="stop", content=row)
        for name, values in looped(generation, prompt).items():
            assert getattr(made, name).tolist() == values, name
        assert row.facts == replace(made, input_ids=made.input_ids).facts  # other columns are counted anew


def test_a_row_travels_with_its_tokens_and_routes() -> None:
    many = local_rows(PROMPT, [answer(1000, 3)] * 50, [""] * 50, ())
    assert len(pickle.dumps(many[7], protocol=5)) < 20_000
    routes = np.ones((6, 2, 1), np.int16)
    known, unknown = local_rows(PROMPT, [replace(answer(4, 3), routes=routes), answer(4, 3)], ["", ""], ())
    assert known.routes is not None
    assert known.routes[:, 0, 0].tolist() == [1] * 6 + [-1]
    assert unknown.routes is None
