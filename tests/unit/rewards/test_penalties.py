"""Penalties against independent slow loops in float64."""

import random
from typing import Any

import numpy as np
import pytest

from roll.rewards.base import RewardInput
from roll.rewards.penalties import LongWord, Overlong, Repetition, ShortResponse
from tests.helpers.cases import cases


def answer(text: str = "", tokens: int = 0) -> RewardInput:
    return RewardInput("", text, num_response_tokens=tokens)


def dapo_equation_13(length: int, longest: int, cache: int) -> np.float64:
    """The three cases as the paper writes them."""
    if length <= longest - cache:
        return np.float64(0)
    if longest - cache < length <= longest:
        return np.float64((longest - cache) - length) / np.float64(cache)
    return np.float64(-1)


@pytest.mark.parametrize(("longest", "cache"), [(20480, 4096), (100, 20), (100, 100), (7, 3), (1, 1)])
def test_the_overlong_ramp_is_equation_13_of_dapo_at_every_length(longest: int, cache: int) -> None:
    overlong = Overlong(max_tokens=longest, cache_tokens=cache)
    step = max(1, longest // 997)
    for length in [*range(0, longest + cache + 2, step), longest - cache, longest - cache + 1, longest, longest + 1]:
        assert overlong(answer(tokens=length)) == dapo_equation_13(length, longest, cache)


@pytest.mark.parametrize(("tokens", "score"), [(0, 0), (80, 0), (81, -0.05), (90, -0.5), (100, -1), (101, -1)])
def test_the_overlong_ramp_at_the_lengths_of_its_docstring(tokens: int, score: float) -> None:
    assert Overlong(100, 20)(answer(tokens=tokens)) == pytest.approx(score, abs=1e-12)


def repeated_share(units: list[str], size: int) -> np.float64:
    """Every n-gram against all before it."""
    ngrams = [units[i : i + size] for i in range(len(units) - size + 1)]
    if not ngrams:
        return np.float64(0)
    repeats = sum(any(ngrams[i] == ngrams[j] for j in range(i)) for i in range(len(ngrams)))
    return np.float64(repeats) / np.float64(len(ngrams))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("by", ["words", "characters"])
def test_the_repetition_penalty_is_the_share_of_repeated_ngrams(size: int, by: Any) -> None:
    draw = random.Random(size)
    penalty = Repetition(ngram_size=size, max_penalty=-0.7, by=by)
    for length in [*range(8), 30, 60]:
        words = [draw.choice(["a", "B", "cc", "\u00e9"]) for _ in range(length)]
        text = draw.choice([" ", "\n", " \t "]).join(words)
        units = [w.lower() for w in words] if by == "words" else list("".join(words).lower())
        assert penalty(answer(text)) == pytest.approx(-0.7 * repeated_share(units, size), abs=1e-15)


@cases("text, settings, score")
def test_repetitions_by_hand(text: str, settings: dict[str, Any], score: float) -> None:
    assert Repetition(**settings)(answer(text)) == pytest.approx(score, abs=1e-15)


@pytest.mark.parametrize(
    ("tokens", "score"),
    [(0, -0.5), (100, -0.5), (101, -299 / 600), (250, -0.25), (399, -1 / 600), (400, 0)],
)
def test_short_answers_lose_as_in_roll(tokens: int, score: float) -> None:
    assert ShortResponse()(answer(tokens=tokens)) == pytest.approx(score, abs=1e-15)
    assert ShortResponse()(answer(tokens=tokens + 400)) == 0


@pytest.mark.parametrize(
    ("text", "score"),
    [("", 0), ("a" * 100, 0), ("a" * 101, -1), ("a " * 101, 0), ("b\n" + "a" * 101 + "\nb", -1), ("a\n" * 60, 0)],
)
def test_a_run_without_white_space_is_too_long_from_101_characters(text: str, score: float) -> None:
    assert LongWord()(answer(text)) == score


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Overlong(100, 0), "cache_tokens: 0 must be from 1 to max_tokens, 100"),
        (lambda: Overlong(100, 101), "cache_tokens: 101 must be from 1 to max_tokens, 100"),
        (lambda: Repetition(ngram_size=0), "ngram_size: 0 must be at least 1"),
        (lambda: Repetition(max_penalty=0.5), "max_penalty: 0.5 must not be above 0"),
        (lambda: Repetition(by="lines"), "by: 'lines' must be words or characters"),  # type: ignore[arg-type]
        (lambda: ShortResponse(400, 400), "min_tokens: 400 must be from 0 to below max_tokens, 400"),
        (lambda: LongWord(0), "max_chars: 0 must be at least 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
