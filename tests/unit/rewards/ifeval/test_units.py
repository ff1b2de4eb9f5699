"""Counting words, sentences and paragraphs."""

import pytest

from roll.rewards.ifeval.instructions import count_capital_words, count_sentences, count_words
from roll.rewards.ifeval.reward import blocks, divided
from tests.helpers.cases import cases


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("Hello", 1),
        ("One. Two. Three.", 3),
        ("Really?! Yes!", 2),
        ("Wait... What?", 1),
        ("it ends. then goes on. but small.", 3),
        ("Mr. and Mrs. Jones left. They were tired.", 2),
        ("The U.S. Army came. It left.", 2),
        ("J. R. Smith is here.", 1),
        ('He said "Go." Then he left.', 2),
        ("**Bold.** Next one.", 2),
        ("1. First item.\n2. Second item.", 4),
        ("v1.2.3 is out. Visit example.com now.", 2),
        ("What?\nWhy?\nHow?", 3),
        ("Title\n\nBody text.", 1),
        ("." * 10_000, 1),
    ],
)
def test_sentences(text: str, count: int) -> None:
    assert count_sentences(text) == count


@cases("text, words, capitals")
def test_words_and_words_in_capitals(text: str, words: int, capitals: int) -> None:
    assert (count_words(text), count_capital_words(text)) == (words, capitals)


@cases("text, paragraphs")
def test_paragraphs_between_dividers(text: str, paragraphs: list[str] | None) -> None:
    assert divided(text) == paragraphs


def test_paragraphs_between_empty_lines() -> None:
    assert blocks("a\nb\n\n \n\nc\n") == ["a\nb", "c"] and blocks("\n\n") == []
