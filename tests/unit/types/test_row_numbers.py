"""What rows of a step repeat of others."""

import numpy as np
import pytest

from roll.types.batch import Rows
from roll.types.media import Picture, Shown
from roll.types.row_numbers import ROW_STAGES, repetitions, row_numbers


def numbers(*rows: tuple[float, float, float]) -> np.ndarray:
    """Rows of prompt, response and reward."""
    made = np.ones((len(rows), len(ROW_STAGES) + 1))
    made[:, :3] = rows
    return made


def test_equal_responses_count_within_their_prompt_and_differ_by_their_rewards() -> None:
    rows = numbers((1, 5, 0.0), (1, 5, 1.0), (1, 6, 0.0), (2, 5, 1.0), (2, 7, 1.0), (2, 7, 1.0))
    found = repetitions(rows, np.array([0, 0, 0, 1, 1, 1]), np.zeros(6, int))
    assert found == {
        "duplicate_responses_fraction": pytest.approx(2 / 6),
        "repeated_prompts_fraction": 0.0,
        "duplicate_reward_std_mean": pytest.approx(0.5**0.5 / 2),
    }


def test_groups_with_the_prompt_of_another_group_repeat_it() -> None:
    rows = numbers((1, 5, 0.0), (1, 6, 1.0), (2, 5, 0.0), (1, 7, 1.0))
    assert repetitions(rows, np.array([0, 1, 2, 3]), np.zeros(4, int)) == {
        "duplicate_responses_fraction": 0.0,
        "repeated_prompts_fraction": pytest.approx(0.5),
    }


def test_prompts_with_the_same_text_and_other_pictures_differ() -> None:
    media = [(Shown(Picture(digest, 8, 8, None), 0, 1),) for digest in "aba"]
    rows = Rows.of([[1, 2, 3]] * 3, [[False, False, True]] * 3, media)
    first, second, third = row_numbers(rows)[:, 0]
    assert first == third != second


def test_equal_moves_of_attempts_with_a_row_per_turn_may_be_paid_differently() -> None:
    rows = numbers((1, 5, 0.0), (2, 6, 0.0), (1, 5, 1.0), (3, 6, 1.0))
    assert "duplicate_reward_std_mean" not in repetitions(rows, np.zeros(4, int), np.array([0, 1, 0, 1]))
