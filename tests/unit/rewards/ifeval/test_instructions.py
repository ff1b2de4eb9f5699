"""Each instruction of IFEval on responses that follow it and that do not. Those about languages are in
test_languages.py.

The verdicts follow from the published definitions. Those at the edges were taken from a copy of the authors' checks
(google-research/instruction_following_eval, as a package of evaluation tasks ships it) with NLTK's tokenizers and its
English Punkt tables; none of that is needed here.
"""

from typing import Any

import pytest

from roll.rewards.ifeval.instructions import INSTRUCTIONS
from tests.helpers.cases import cases


@cases("name, arguments, follow, fail")
def test_a_response_follows_an_instruction_or_not(
    name: str, arguments: dict[str, Any], follow: list[str], fail: list[str]
) -> None:
    verdicts = {text: INSTRUCTIONS[name](text, **arguments) for text in follow + fail}
    assert verdicts == dict.fromkeys(follow, True) | dict.fromkeys(fail, False)


def test_endless_texts_fail() -> None:
    assert not INSTRUCTIONS["detectable_content:number_placeholders"]("[" + "a" * 300_000, num_placeholders=1)
    sections = {"section_spliter": "Section", "num_sections": 2}
    assert not INSTRUCTIONS["detectable_format:multiple_sections"]("\n" * 30_000 + "Section 1", **sections)
    assert not INSTRUCTIONS["detectable_format:json_format"]("[" * 100_000)
    assert not INSTRUCTIONS["detectable_format:title"]("<<" + "a" * 300_000)


def test_a_relation_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="'about' is no relation: at least, at most, less than"):
        INSTRUCTIONS["length_constraints:number_words"]("a", num_words=1, relation="about")
