"""What a sentence outside of a box gives as its answer."""

import pytest

from roll.utils.prose import last_number
from tests.unit.utils.prose_sentences import SENTENCES


@pytest.mark.parametrize(("text", "answer"), SENTENCES)
def test_a_sentence_gives_its_last_number_with_what_belongs_to_it(text: str, answer: str | None) -> None:
    assert last_number(text) == answer
