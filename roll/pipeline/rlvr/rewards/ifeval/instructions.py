"""The 25 verifiable instructions of IFEval (Zhou et al. 2023, arXiv:2311.07911, table 1), by the ids of its data.

Each is a function of the response and of the arguments that the data gives (`kwargs`). Where the paper's words leave it
open they decide as the authors' implementation does; where they do not, the words count:

- keywords are texts, not regular expressions;
- `length_constraints:number_sentences` and `change_case:capital_word_frequency` count by `units.py`, not by NLTK;
- languages are told by py3langid, not by langdetect, whose verdicts are drawn at random; capitals do not mislead it;
- a divider, a bullet and a section's mark are what Markdown takes for one: `***bold***` divides nothing, a line of
  `---` or one that begins with `*italics*` is no bullet, "see Section 2" in a sentence begins no section;
- a placeholder and a highlighted section are not empty, and a product like 2 * 3 * 4 highlights nothing;
- a postscript has words behind its mark, a repeated prompt an answer behind it, and a response in JSON is an object or
  a list;
- an answer from fixed options names one of them, not several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roll.pipeline.rlvr.rewards.ifeval.units import (
    blocks,
    count_capital_words,
    count_sentences,
    count_words,
    divided,
    holds,
    is_in_language,
    trimmed,
)

BULLET = re.compile(r"^[ \t]*[*+-][ \t]+(?=\S)(?![*+\- \t]*$)", re.MULTILINE)
HIGHLIGHT = re.compile(r"(?<!\*)(\*{1,3})(?![\s*])[^\n*]+(?<!\s)\1(?!\*)")
PLACEHOLDER = re.compile(r"\[([^\[\]\n]+)\]")
TITLE = re.compile(r"<<([^\n<>]+)>>")
SIX_STARS = re.compile(r"(?<!\*)\*{6}(?!\*)")
FENCE = re.compile(r"\A```(?:json)?\s*\n?(.*?)\n?```\Z", re.DOTALL | re.IGNORECASE)
OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
FIRST_WORD_END = re.compile(r"[\s.,?!'\"\u2019\u201d:;)]")


def include_keywords(text: str, keywords: Sequence[str]) -> bool:
    return all(keyword.lower() in text.lower() for keyword in keywords)


def keyword_frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return holds(text.lower().count(keyword.strip().lower()), relation, frequency)


def forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(
        re.search(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE) for word in forbidden_words
    )


def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return holds(text.lower().count(letter.strip().lower()), let_relation, let_frequency)


def response_language(text: str, language: str) -> bool:
    return is_in_language(text, language)


def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return holds(count_sentences(text), relation, num_sentences)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    paragraphs = divided(text)
    return paragraphs is not None and len(paragraphs) == num_paragraphs


def number_words(text: str, num_words: int, relation: str) -> bool:
    return holds(count_words(text), relation, num_words)


def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    paragraphs = blocks(text)
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    start = paragraphs[nth_paragraph - 1].lstrip("'\"\u2018\u201c").lower()
    wanted = first_word.strip().lower()
    return start == wanted or (start.startswith(wanted) and FIRST_WORD_END.match(start, len(wanted)) is not None)


def number_placeholders(text: str, num_placeholders: int) -> bool:
    return sum(bool(inside.strip()) for inside in PLACEHOLDER.findall(text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    letters = re.fullmatch(r"((?:P\.\s?)+)S\.?", postscript_marker.strip(), re.IGNORECASE)
    mark = re.escape(postscript_marker.strip())
    if letters is not None:
        mark = r"P\.\s?" * letters[1].upper().count("P") + r"S\b\.?"
    return re.search(rf"(?:^|(?<=[\s*_\"]))(?:{mark})\W*\w", text, re.IGNORECASE) is not None


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    return len(BULLET.findall(text)) == num_bullets


def constrained_response(text: str) -> bool:
    return sum(option in text for option in OPTIONS) == 1


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    return len(HIGHLIGHT.findall(text)) >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return count_sections(text, section_spliter) >= num_sections


def count_sections(text: str, splitter: str) -> int:
    """Lines that begin with the mark and a number, behind what Markdown writes before a heading or a bold word."""
    return len(re.findall(rf"^[ \t#*_>]*{re.escape(splitter.strip())}\s?\d+", text, re.MULTILINE))


def json_format(text: str) -> bool:
    fenced = FENCE.match(text.strip())
    try:
        value = json.loads(fenced[1] if fenced is not None else text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict | list)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def title(text: str) -> bool:
    return any(inside.strip() for inside in TITLE.findall(text))


def two_responses(text: str) -> bool:
    responses = trimmed(SIX_STARS.split(text))
    return responses is not None and len(responses) == 2 and responses[0] != responses[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    given, wanted = text.strip().lower(), prompt_to_repeat.strip().lower()
    return given.startswith(wanted) and re.search(r"\w", given[len(wanted) :]) is not None


def end_checker(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().strip('"').lower())


def quotation(text: str) -> bool:
    text = text.strip()
    return len(text) > 2 and text.startswith('"') and text.endswith('"')


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return holds(count_capital_words(text), capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    return text.isupper() and is_in_language(text, "en")


def english_lowercase(text: str) -> bool:
    return text.islower() and is_in_language(text, "en")


def no_comma(text: str) -> bool:
    return "," not in text


INSTRUCTIONS: Mapping[str, Callable[..., bool]] = {
    "keywords:existence": include_keywords,
    "keywords:frequency": keyword_frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "startend:quotation": quotation,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
}
