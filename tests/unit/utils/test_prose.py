"""What a sentence outside of a box gives as its answer."""

import pytest

from roll.utils.answers.prose import answer_in_prose
from tests.unit.utils.prose_sentences import SENTENCES


@pytest.mark.parametrize(("text", "answer"), SENTENCES)
def test_a_sentence_gives_its_answer_in_prose_with_what_belongs_to_it(text: str, answer: str | None) -> None:
    assert answer_in_prose(text) == answer
