"""The same instructions as RLVR-IFeval's data gives them (Lambert et al. 2024, arXiv:2411.15124; ROLL's `ifeval` rows):
`{"func_name": "verify_keywords", "keyword_list": [...]}`. Several ask for an exact number where IFEval's have a
relation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from roll.pipeline.rlvr.rewards.ifeval import instructions as ifeval
from roll.pipeline.rlvr.rewards.ifeval.units import count_capital_words, count_sentences, count_words, holds


def keywords(text: str, keyword_list: Sequence[str]) -> bool:
    return ifeval.include_keywords(text, keyword_list)


def keyword_frequency(text: str, word: str, N: int) -> bool:
    return len(re.findall(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE)) == N


def letter_frequency(text: str, letter: str, N: int) -> bool:
    return text.count(letter) == N


def words(text: str, N: int, quantifier: str) -> bool:
    return holds(count_words(text), quantifier, N)


def sentences(text: str, N: int, quantifier: str) -> bool:
    return holds(count_sentences(text), quantifier, N)


def paragraphs(text: str, N: int, first_word: str, i: int) -> bool:
    return ifeval.nth_paragraph_first_word(text, N, i, first_word)


def paragraph_count(text: str, N: int) -> bool:
    return ifeval.number_paragraphs(text, N)


def placeholders(text: str, N: int) -> bool:
    return ifeval.number_placeholders(text, N)


def bullet_points(text: str, N: int) -> bool:
    return ifeval.number_bullet_lists(text, N)


def choice(text: str, options: Sequence[str] | str) -> bool:
    """The response is one of the options, quotes and a final dot aside."""
    wanted = re.split(r"[/,|]|\bor\b", options.strip("()[] ")) if isinstance(options, str) else options
    return _bare(text) in {_bare(str(option)) for option in wanted}


def _bare(text: str) -> str:
    return text.strip(" \t\n\"'.").casefold()


def highlighted_sections(text: str, N: int) -> bool:
    return ifeval.number_highlighted_sections(text, N)


def sections(text: str, N: int, section_splitter: str) -> bool:
    return ifeval.count_sections(text, section_splitter) == N


def repeat_prompt(text: str, original_prompt: str) -> bool:
    return ifeval.repeat_prompt(text, original_prompt)


def uppercase(text: str) -> bool:
    return text.isupper()


def lowercase(text: str) -> bool:
    return text.islower()


def capital_words(text: str, N: int, quantifier: str) -> bool:
    return holds(count_capital_words(text), quantifier, N)


FUNCTIONS: Mapping[str, Callable[..., bool]] = {
    "verify_keywords": keywords,
    "verify_keyword_frequency": keyword_frequency,
    "validate_forbidden_words": ifeval.forbidden_words,
    "verify_letter_frequency": letter_frequency,
    "validate_response_language": ifeval.response_language,
    "verify_paragraph_count": paragraph_count,
    "validate_word_constraint": words,
    "verify_sentence_constraint": sentences,
    "validate_paragraphs": paragraphs,
    "verify_postscript": ifeval.postscript,
    "validate_placeholders": placeholders,
    "verify_bullet_points": bullet_points,
    "validate_title": ifeval.title,
    "validate_choice": choice,
    "validate_highlighted_sections": highlighted_sections,
    "validate_sections": sections,
    "validate_json_format": ifeval.json_format,
    "validate_repeat_prompt": repeat_prompt,
    "validate_two_responses": ifeval.two_responses,
    "validate_uppercase": uppercase,
    "validate_lowercase": lowercase,
    "validate_frequency_capital_words": capital_words,
    "validate_end": ifeval.end_checker,
    "validate_quotation": ifeval.quotation,
    "validate_no_commas": ifeval.no_comma,
}
