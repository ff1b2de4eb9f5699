"""Verdicts at the edges of IFEval's instructions, as the authors' program gives them.

The verdicts were taken from a copy of their checks (google-research/instruction_following_eval, as a package of
evaluation tasks ships it) with NLTK's tokenizers and its English Punkt tables; none of that is needed here. Languages
are in test_languages.py: ours are told by another classifier.
"""

from typing import Any

import pytest

from roll.rewards.ifeval.instructions import INSTRUCTIONS

ROWS: list[tuple[str, dict[str, Any], str, bool]] = [
    ("keywords:existence", {"keywords": ["a.c"]}, "abc", True),
    ("keywords:existence", {"keywords": ["cat"]}, "scatter", True),
    ("keywords:existence", {"keywords": ["cat", "dog"]}, "A CAT.", False),
    ("keywords:existence", {"keywords": ["c\\+\\+"]}, "We write C++.", True),
    ("keywords:existence", {"keywords": ["global warming"]}, "global  warming", False),
    ("keywords:frequency", {"keyword": "cat", "frequency": 2, "relation": "at least"}, "cats scatter", True),
    ("keywords:frequency", {"keyword": "a.b", "frequency": 2, "relation": "at least"}, "a.b aXb", True),
    ("keywords:frequency", {"keyword": " cat ", "frequency": 1, "relation": "less than"}, "the cat", False),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "Cats scatter.", True),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "cat-like", False),
    ("keywords:forbidden_words", {"forbidden_words": ["c#"]}, "I use C#.", True),
    ("keywords:forbidden_words", {"forbidden_words": ["colou?r"]}, "a color", False),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "cat_food", True),
    ("keywords:letter_frequency", {"letter": "N", "let_frequency": 2, "let_relation": "at least"}, "banaNa", True),
    ("keywords:letter_frequency", {"letter": "a", "let_frequency": 3, "let_relation": "less than"}, "banana", False),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "at least"},
        "it ends. then goes on. but small.",
        True,
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 4, "relation": "at least"},
        "1. First item.\n2. Second item.",
        True,
    ),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "I like e.g. Apples.", True),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "less than"},
        "Dr. Smith met J. R. Jones.",
        True,
    ),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, "Wait... What?", True),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "Title\n\nBody text", False),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        "We met at 5 p.m. The rest is history.",
        True,
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "at least"},
        "See No. 5. It is good.",
        True,
    ),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, "你好。去吗？", True),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "at least"},
        'He said "Go!" and left. "Why?" she asked.',
        True,
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a ***b*** c", False),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 3}, "a ***b*** c", True),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n* * *\nb", False),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "***\na\n***\nb\n***", True),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\n***\nb", False),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 1}, "a\n\nb", True),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n****\nb", True),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "don't go", True),
    ("length_constraints:number_words", {"num_words": 2, "relation": "less than"}, "你好吗", True),
    ("length_constraints:number_words", {"num_words": 4, "relation": "at least"}, "state-of-the-art", True),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "First.\n\nThen, it",
        True,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "First.\n \nThen it",
        False,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "First.\n\n\n\nThen it",
        False,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "then"},
        '\'"Then" he',
        True,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "then"},
        "Then: go",
        False,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "then"},
        "**Then** go",
        False,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "a"},
        "a\n\nb\n\nc",
        False,
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[] and [a]", True),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "[a\nb]", False),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[[a] b]", False),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye. P.S.", True),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye. P.S more", False),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye. p. p. s more", True),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "It stops.Ps. no", False),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP.P.S. more", True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "a\n---\nb", True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "*italics* begin", True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 0}, "**bold** begins", True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "+ a\n* b", False),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "-a\n*b", True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n  - b", True),
    ("detectable_format:constrained_response", {}, "My answer is yes. My answer is no.", True),
    ("detectable_format:constrained_response", {}, "my answer is yes.", False),
    ("detectable_format:constrained_response", {}, "Well, My answer is maybe. I think.", True),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "2 * 3 * 4", True),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* **b**", True),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "** ** *", False),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "***a***", True),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "***a***", True),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 1},
        "as Section 2 says",
        True,
    ),
    ("detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 1}, "Section 1", False),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection2\nb",
        True,
    ),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 1}, "Section A", False),
    ("detectable_format:json_format", {}, "42", True),
    ("detectable_format:json_format", {}, "NaN", True),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', True),
    ("detectable_format:json_format", {}, 'Here: {"a": 1}', False),
    ("detectable_format:json_format", {}, "```\n[1]", True),
    ("detectable_format:json_format", {}, "{'a': 1}", False),
    ("detectable_format:title", {}, "<< >>", False),
    ("detectable_format:title", {}, "a << b >> c", True),
    ("detectable_format:title", {}, "<<a\nb>>", False),
    ("detectable_format:title", {}, "<<<a>>>", True),
    ("combination:two_responses", {}, "a\n******\nb", True),
    ("combination:two_responses", {}, "a ******* b", True),
    ("combination:two_responses", {}, "******a******b******", True),
    ("combination:two_responses", {}, "a\n******\na ", False),
    ("combination:two_responses", {}, "a******b******c", False),
    ("combination:two_responses", {}, "a************b", False),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "say hi.", True),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, '"Say hi." Hi', False),
    ("startend:end_checker", {"end_phrase": "The end."}, 'So. THE END."\n', True),
    ("startend:end_checker", {"end_phrase": "The end."}, "So. The end", False),
    ("startend:end_checker", {"end_phrase": '"The end."'}, 'So. "The end."', False),
    ("startend:quotation", {}, '""', True),
    ("startend:quotation", {}, '"', False),
    ("startend:quotation", {}, "“a”", False),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, "DON'T", True),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, "AT&T", True),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "less than"},
        "GPT-4 STATE-OF-THE-ART",
        False,
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 1, "capital_relation": "at least"},
        "NASA's plan",
        True,
    ),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "less than"}, "A/B", True),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, "I CANNOT", True),
    ("punctuation:no_comma", {}, "1,000", False),
    ("punctuation:no_comma", {}, "a， b", True),
]


LETTER = (
    "Dear Ms. Lee,\n\nThank you for the kind words. We are glad you liked the soup!\n\nYours,\n[name]\n[town]\n\n"
    "P.S. Come back soon."
)
ESSAY = "<<On rain>>\n\nRain falls. It is *wet* and **cold**.\n\n* drops\n* puddles\n\nMy answer is maybe."
PARTS = "SECTION 1\nWhat rain is.\n***\nSECTION 2\nWhy it falls.\n***\nSECTION 3\nThe end"
WHOLE: list[tuple[str, dict[str, Any], str, bool]] = [
    ("keywords:existence", {"keywords": ["soup", "thank"]}, LETTER, True),
    ("keywords:existence", {"keywords": ["soups"]}, LETTER, False),
    ("keywords:frequency", {"keyword": "you", "frequency": 3, "relation": "at least"}, LETTER, True),
    ("keywords:frequency", {"keyword": "you", "frequency": 3, "relation": "less than"}, LETTER, False),
    ("keywords:forbidden_words", {"forbidden_words": ["kin", "oup"]}, LETTER, True),
    ("keywords:forbidden_words", {"forbidden_words": ["kind"]}, LETTER, False),
    ("keywords:letter_frequency", {"letter": "k", "let_frequency": 4, "let_relation": "at least"}, LETTER, True),
    ("keywords:letter_frequency", {"letter": "k", "let_frequency": 4, "let_relation": "less than"}, LETTER, False),
    ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "less than"}, LETTER, False),
    ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "at least"}, LETTER, True),
    ("length_constraints:number_words", {"num_words": 24, "relation": "at least"}, LETTER, True),
    ("length_constraints:number_words", {"num_words": 25, "relation": "at least"}, LETTER, False),
    ("length_constraints:number_words", {"num_words": 24, "relation": "less than"}, LETTER, False),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 3}, PARTS, True),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, PARTS, False),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 4}, LETTER, False),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 1}, LETTER, True),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 3}, PARTS + "\n***\n", True),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 4, "nth_paragraph": 2, "first_word": "THANK"},
        LETTER,
        True,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 4, "nth_paragraph": 4, "first_word": "p"},
        LETTER,
        True,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 3, "nth_paragraph": 2, "first_word": "thank"},
        LETTER,
        False,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 4, "nth_paragraph": 3, "first_word": "yours,"},
        LETTER,
        False,
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, LETTER, True),
    ("detectable_content:number_placeholders", {"num_placeholders": 3}, LETTER, False),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, LETTER, True),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, LETTER, False),
    ("detectable_content:postscript", {"postscript_marker": "N.B."}, "Bye.\n\nn.b. none", True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, ESSAY, True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 3}, ESSAY, False),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "1. a\n2. b\n- c", True),
    ("detectable_format:constrained_response", {}, ESSAY, True),
    ("detectable_format:constrained_response", {}, ESSAY.replace("maybe.", "maybe!"), False),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, ESSAY, True),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 3}, ESSAY, False),
    ("detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 3}, PARTS, True),
    ("detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 4}, PARTS, False),
    ("detectable_format:multiple_sections", {"section_spliter": "Day", "num_sections": 2}, "Day 1 a Day 12 b", True),
    ("detectable_format:json_format", {}, ESSAY, False),
    ("detectable_format:json_format", {}, '```JSON\n{"rain": ["wet", null]}\n```\n', True),
    ("detectable_format:json_format", {}, '{"rain": "wet",}', False),
    ("detectable_format:title", {}, ESSAY, True),
    ("detectable_format:title", {}, "<On rain>", False),
    ("combination:two_responses", {}, "Rain.\n******\nSnow.", True),
    ("combination:two_responses", {}, "Rain.\n*****\nSnow.", False),
    ("combination:two_responses", {}, PARTS, False),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write of rain."}, "Write of rain.\n\nRain falls.", True),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write of rain."}, "**Write of rain.** Rain falls.", False),
    ("startend:end_checker", {"end_phrase": "the end"}, PARTS, True),
    ("startend:end_checker", {"end_phrase": "Come back soon"}, LETTER, False),
    ("startend:quotation", {}, f' "{LETTER}" ', True),
    ("startend:quotation", {}, f"'{LETTER}'", False),
    ("change_case:capital_word_frequency", {"capital_frequency": 3, "capital_relation": "at least"}, PARTS, True),
    ("change_case:capital_word_frequency", {"capital_frequency": 4, "capital_relation": "at least"}, PARTS, False),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "less than"}, LETTER, True),
    ("change_case:english_capital", {}, "THE RAIN FALLS ON THE ROOF OF THE HOUSE ALL DAY", True),
    ("change_case:english_capital", {}, "THE RAIN FALLS ON THE ROOF OF THE HOUSE ALL dAY", False),
    ("change_case:english_lowercase", {}, "the rain falls on the roof of the house all day", True),
    ("change_case:english_lowercase", {}, "The rain falls on the roof of the house all day", False),
    ("language:response_language", {"language": "de"}, "Der Regen f\u00e4llt den ganzen Tag auf das Dach.", True),
    ("language:response_language", {"language": "de"}, "The rain falls on the roof all day.", False),
    ("punctuation:no_comma", {}, LETTER, False),
    ("punctuation:no_comma", {}, ESSAY, True),
]
"""Whole answers, with the verdicts that follow from the authors' definitions, instruction by instruction."""


@pytest.mark.parametrize(("name", "kwargs", "answer", "verdict"), WHOLE, ids=range(len(WHOLE)))
def test_a_whole_answer_is_judged_by_the_published_definition(
    name: str, kwargs: dict[str, Any], answer: str, verdict: bool
) -> None:
    assert INSTRUCTIONS[name](answer, **kwargs) is verdict


def test_whole_answers_try_every_instruction() -> None:
    assert {name for name, *_ in WHOLE} == set(INSTRUCTIONS)


@pytest.mark.parametrize(("name", "kwargs", "answer", "verdict"), ROWS, ids=range(len(ROWS)))
def test_a_verdict_is_that_of_the_authors(name: str, kwargs: dict[str, Any], answer: str, verdict: bool) -> None:
    assert INSTRUCTIONS[name](answer, **kwargs) is verdict


def test_every_instruction_but_those_of_languages_has_rows() -> None:
    others = {name for name in INSTRUCTIONS if "language" in name or "english" in name}
    assert {name for name, *_ in ROWS} | others == set(INSTRUCTIONS) and len(ROWS) >= 60
