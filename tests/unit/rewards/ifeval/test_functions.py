"""The functions of RLVR-IFeval's data (ROLL's `ifeval` rows), through the reward."""

import json
from typing import Any

import pytest

from roll.rewards.base import RewardInput
from roll.rewards.ifeval.reward import FUNCTIONS, IFEval

CASES: dict[str, list[tuple[dict[str, Any], list[str], list[str]]]] = {  # arguments, who follows, who does not
    "verify_keywords": [({"keyword_list": ["cat", "dog"]}, ["A Cat and a dog"], ["A cat", "nothing"])],
    "verify_keyword_frequency": [
        ({"word": "cat", "N": 2}, ["cat, CAT!"], ["cat", "cat cat cat", "cats cat", "none"]),
        ({"word": "cat", "N": 0}, ["cats"], ["cat"]),
    ],
    "validate_forbidden_words": [({"forbidden_words": ["cat"]}, ["cats", "dog"], ["a cat", "CAT"])],
    "verify_letter_frequency": [({"letter": "a", "N": 2}, ["banAna"], ["a", "aaa", "b"])],
    "verify_paragraph_count": [({"N": 2}, ["a\n* * *\nb", "a\n***\nb"], ["a\n\nb", "a", "a\n* * *\n* * *\nb"])],
    "validate_word_constraint": [
        ({"N": 3, "quantifier": "at least"}, ["a b c", "a b c d"], ["a b"]),
        ({"N": 3, "quantifier": "at most"}, ["a b c", "a"], ["a b c d"]),
        ({"N": 20, "quantifier": "around"}, ["w " * 18, "w " * 22], ["w " * 17, "w " * 23]),
    ],
    "verify_sentence_constraint": [
        ({"N": 2, "quantifier": "at least"}, ["One. Two."], ["One"]),
        ({"N": 2, "quantifier": "at most"}, ["One. Two."], ["One. Two. Three."]),
        ({"N": 3, "quantifier": "around"}, ["One. Two.", "One. Two. Three. Four."], ["One."]),
    ],
    "validate_paragraphs": [
        (
            {"N": 2, "first_word": "Then", "i": 2},
            ["First.\n\nThen it", "A\n\nthen"],
            ["First.\n\nNow", "Then", "a\n\nb\n\nc"],
        )
    ],
    "verify_postscript": [({"postscript_marker": "P.S."}, ["Bye.\nP.S. more"], ["Bye.", "Bye. P.S."])],
    "validate_placeholders": [({"N": 1}, ["Dear [name]", "[a] [b]"], ["Dear name", "[]"])],
    "verify_bullet_points": [({"N": 2}, ["* a\n* b", "- a\n- b"], ["* a", "* a\n* b\n* c", "a\nb"])],
    "validate_title": [({}, ["<<Joy>>\ntext"], ["Joy", "<<>>"])],
    "validate_choice": [
        ({"options": ["yes", "no"]}, ["yes", "Yes.", '"no"'], ["maybe", "yes or no", "y"]),
        ({"options": "(red/blue)"}, ["red", "Blue"], ["green", "red/blue"]),
    ],
    "validate_highlighted_sections": [({"N": 2}, ["*a* **b**"], ["*a*", "2 * 3 * 4"])],
    "validate_sections": [
        (
            {"N": 2, "section_splitter": "Section"},
            ["Section 1\na\nSection 2\nb"],
            ["Section 1", "Section 1\nSection 2\nSection 3"],
        )
    ],
    "validate_json_format": [({}, ['{"a": 1}', "[]"], ["a: 1", "{"])],
    "validate_repeat_prompt": [({"original_prompt": "Say hi."}, ["Say hi. Hi!"], ["Hi!", "Say hi."])],
    "validate_two_responses": [({}, ["a\n******\nb"], ["a", "a\n******\na"])],
    "validate_uppercase": [({}, ["ALL OF IT 1!"], ["All of it", "123"])],
    "validate_lowercase": [({}, ["all of it 1!"], ["All of it", "123"])],
    "validate_frequency_capital_words": [
        ({"N": 1, "quantifier": "at least"}, ["the UN"], ["the un"]),
        ({"N": 1, "quantifier": "at most"}, ["the UN"], ["the UN and the EU"]),
    ],
    "validate_end": [({"end_phrase": "The end."}, ["So it is. The end."], ["The end. Really."])],
    "validate_quotation": [({}, ['"all"'], ["all", '"all'])],
    "validate_no_commas": [({}, ["a b"], ["a, b"])],
}


@pytest.mark.parametrize(
    ("name", "args", "text", "follows"),
    [
        (name, args, text, follows)
        for name, cases in CASES.items()
        for args, good, bad in cases
        for texts, follows in ((good, True), (bad, False))
        for text in texts
    ],
)
def test_a_response_follows_a_function_or_not(name: str, args: dict[str, Any], text: str, follows: bool) -> None:
    nulls = dict.fromkeys(("N", "quantifier", "keyword_list", "options", "language"))
    truth = {"func_name": name, **nulls, **args}
    assert IFEval()(RewardInput("", text, truth)).score == follows
    assert IFEval("soft")(RewardInput("", text, json.dumps(truth))).score == follows


def test_every_function_of_the_data_has_cases() -> None:
    assert set(CASES) | {"validate_response_language"} == set(FUNCTIONS) and len(FUNCTIONS) == 25
