"""Counting words, sentences and paragraphs."""

import pytest

from roll.rewards.ifeval.instructions import count_capital_words, count_words
from roll.rewards.ifeval.reward import blocks, divided
from roll.rewards.ifeval.sentences import count_sentences
from tests.helpers.cases import cases


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("Hello", 1),
        ("Hello.", 1),
        ("One. Two. Three.", 3),
        ("One.Two", 1),
        ("One! Two? Three.", 3),
        ("Really?! Yes!", 2),
        ("Wait... what?", 1),
        ("Wait... What?", 1),
        ("Wait\u2026 What?", 1),
        ("it ends. then goes on. but small.", 3),
        ("Dr. Smith came at 5 p.m. today. Why? He had 3.5 hours...", 3),
        ("Mr. and Mrs. Jones left. They were tired.", 2),
        ("We met at 5 p.m. The rest is history.", 2),
        ("The U.S. Army came. It left.", 2),
        ("I live in the U.S. It is big.", 2),
        ("J. R. Smith is here.", 1),
        ("Plan B. The best.", 2),
        ("I like e.g. Apples. And pears, etc. The end.", 4),
        ("See No. 5. It is good.", 3),
        ("I said no. He left.", 2),
        ("Fig. 3 shows it. A fig. Another one.", 4),
        ('He said "Go." Then he left.', 2),
        ("He said (quietly.) Then he left.", 2),
        ("(He left.) She stayed.", 2),
        ("**Bold.** Next one.", 2),
        ("1. First item.\n2. Second item.", 4),
        ("a. First item\nb. Second item", 3),
        ("- One point.\n- Another point.", 2),
        ("How old? 5. Then go.", 3),
        ("v1.2.3 is out. Visit example.com now.", 2),
        ("What?\nWhy?\nHow?", 3),
        ("Title\n\nBody text.", 1),
        ("*** !!! ...", 3),
        ("\u4f60\u597d\u3002\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff01\u53bb\u5417\uff1f", 1),
        ("\u0928\u092e\u0938\u094d\u0924\u0947\u0964 \u0906\u092a \u0915\u0948\u0938\u0947 \u0939\u0948\u0902?", 1),
        ("." * 10_000, 1),
        ("B. " * 3_000, 1),
        ("." * 300_000 + "a", 1),
        (". " * 30_000, 30000),
    ],
)
def test_sentences(text: str, count: int) -> None:
    assert count_sentences(text) == count


@cases("text, count")
def test_sentences_behind_letters_abbreviations_and_numbers_are_the_authors(text: str, count: int) -> None:
    assert count_sentences(text) == count


@cases("text, words, capitals")
def test_words_and_words_in_capitals(text: str, words: int, capitals: int) -> None:
    assert (count_words(text), count_capital_words(text)) == (words, capitals)


@cases("text, paragraphs")
def test_paragraphs_between_dividers(text: str, paragraphs: list[str] | None) -> None:
    assert divided(text) == paragraphs


def test_paragraphs_between_empty_lines() -> None:
    assert blocks("a\nb\n\n \n\nc\n") == ["a\nb", "c"] and blocks("\n\n") == []
