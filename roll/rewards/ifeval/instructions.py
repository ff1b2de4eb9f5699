"""The 25 verifiable instructions of IFEval (Zhou et al. 2023, arXiv:2311.07911, table 1), by the ids of its data.

Each is a function of the response and of the arguments that the data gives (`kwargs`), and decides as the authors'
program does (google-research/instruction_following_eval), from which published numbers come. It differs only here:

- languages are told by py3langid, not by langdetect, whose verdicts are drawn at random; capitals do not mislead it;
- sentences are counted without NLTK's Punkt and its data: behind abbreviations and initials a count may differ;
- a keyword, a forbidden word or a section's mark that is no regular expression is a text (there it is an error); nor
  has a response in JSON that is nested too deep an error there: it is none;
- relations of RLVR-IFeval's data (at most, exactly ...) and letters of several characters are understood.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import cast

from roll.utils.imports import resolve

# What instructions count: words, words in capitals; in which language a text is. All without downloads.

WORD = re.compile(r"\w+")
_BETWEEN_TOKENS = re.compile(r"[\s;@#$%&?!*\[\](){}<>\"`«»“”„‘’]|--|\.{2,}|''|[:,](?!\d)")
_SUFFIXED = re.compile(r"(.*[^'])('[sSmMdD]|'ll|'LL|'re|'RE|'ve|'VE|n't|N'T)")
_IN_TWO = re.compile(
    r"\b(can)(not)\b|\b(d)('ye)\b|\b(gim)(me)\b|\b(gon)(na)\b|\b(got)(ta)\b|\b(lem)(me)\b|\b(more)('n)\b"
    r"|\b(wan)(na)$|('t)(is)\b|('t)(was)\b",
    re.IGNORECASE,
)


def count_words(text: str) -> int:
    r"""Runs of letters, digits and _ (`\w+`), as NLTK's RegexpTokenizer: "don't" is two, a Chinese clause is one."""
    return len(WORD.findall(text))


def count_capital_words(text: str) -> int:
    """Tokens of the Penn Treebank's kind, as of NLTK's word_tokenize, that have letters and none of them small. A
    hyphen, a dot or a slash joins, an apostrophe divides.

    Example: "NASA, the U.S. and I: DON'T" has NASA, U.S., I, DO, N'T: 5.
    """
    return sum(token.isupper() for word in _BETWEEN_TOKENS.split(text) for token in _tokens(word))


def _tokens(word: str) -> list[str]:
    match = _SUFFIXED.fullmatch(word)
    parts = [word] if match is None else [match[1], match[2]]
    return [
        piece
        for part in parts
        for piece in _IN_TWO.sub(lambda match: " ".join(filter(None, match.groups())), part).split()
    ]


_SENTENCE_END = re.compile(r"(?P<word>\S{0,20})[.?!][\"')\]}*_\u201d]{0,5}\s+(?=\S)")
_ABBREVIATION = re.compile(
    r"[a-z]|mr|mrs|ms|messrs|dr|prof|sr|jr|st|gen|col|maj|lt|sen|rep|inc|ltd|co|corp|vs|jan|feb|aug|sept|oct|nov|dec"
    r"|a\.m|p\.m|u\.s|u\.k|d\.c|ph\.d|.*\."
)


def count_sentences(text: str) -> int:
    """Sentences end with one of `.?!` before a blank, but not with an ellipsis, an abbreviation or an initial.

    Example: "Mr. Smith came. Why? He had 3.5 hours." has 3, "1. One\\n2. Two" has 4.
    """
    text = text.strip()
    words = [match["word"].lstrip("\"'([{*_").lower() for match in _SENTENCE_END.finditer(text)]
    ends = [word for word in words if not _ABBREVIATION.fullmatch(word)]
    return len(ends) + bool(text)


def is_in_language(text: str, language: str) -> bool:
    """Whether py3langid takes a text for one in the language of an ISO 639-1 code ("zh-cn" is "zh"). It is a fixed
    naive Bayes classifier: the same text always gets the same verdict. A text without a letter is in any language."""
    if not any(map(str.isalpha, text)):
        return True
    classify = cast(Callable[[str], tuple[str, float]], resolve("py3langid:classify"))
    return classify(text.lower())[0] == language.lower().partition("-")[0]


def holds(count: int, relation: str, wanted: int) -> bool:
    """Raises ValueError for a relation that is none. `around` is within a tenth, but at least 1."""
    match relation:
        case "at least":
            return count >= wanted
        case "less than":
            return count < wanted
        case "at most":
            return count <= wanted
        case "more than":
            return count > wanted
        case "exactly":
            return count == wanted
        case "around":
            return abs(count - wanted) <= max(1, round(wanted / 10))
    raise ValueError(f"{relation!r} is no relation: at least, at most, less than, more than, exactly, around")


STARRED, DASHED = re.compile(r"^\s*\*[^*].*$", re.MULTILINE), re.compile(r"^\s*-.*$", re.MULTILINE)
HIGHLIGHT, BOLD = re.compile(r"\*[^\n*]*\*"), re.compile(r"\*\*[^\n*]*\*\*")
PLACEHOLDER = re.compile(r"\[.*?\]")
TITLE = re.compile(r"<<[^\n]+>>")
DIVIDER = re.compile(r"\s?\*\*\*\s?")
SIX_STARS = "******"
FENCES = ("```json", "```Json", "```JSON", "```")
OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
POSTSCRIPTS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
ENDS_WORD = re.compile(r"[.,?!'\"]")


@lru_cache(maxsize=4096)
def _pattern(text: str, around: str = "{}") -> re.Pattern[str]:
    """A regular expression without case; of a text that is none, the text."""
    try:
        return re.compile(around.format(text), re.IGNORECASE)
    except re.error:
        return re.compile(around.format(re.escape(text)), re.IGNORECASE)


def include_keywords(text: str, keywords: Sequence[str]) -> bool:
    return all(_pattern(keyword).search(text) for keyword in keywords)


def keyword_frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return holds(len(_pattern(keyword.strip()).findall(text)), relation, frequency)


def forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(_pattern(word, r"\b{}\b").search(text) for word in forbidden_words)


def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return holds(text.lower().count(letter.strip().lower()), let_relation, let_frequency)


def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return holds(count_sentences(text), relation, num_sentences)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """True if dividers (`***`) separate this many paragraphs. An empty one at either end does not count; one in the
    middle is wrong."""
    paragraphs = [paragraph.strip() for paragraph in DIVIDER.split(text)]
    ends = {0, len(paragraphs) - 1}
    if any(not paragraph and place not in ends for place, paragraph in enumerate(paragraphs)):
        return False
    return sum(map(bool, paragraphs)) == num_paragraphs


def number_words(text: str, num_words: int, relation: str) -> bool:
    return holds(count_words(text), relation, num_words)


def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """True if the text has this many paragraphs, separated by two line ends, and the nth begins with this word. Empty
    paragraphs do not count, but have a place."""
    paragraphs = [paragraph.strip() for paragraph in text.split("\n\n")]
    count = sum(map(bool, paragraphs))
    if count != num_paragraphs or not 1 <= nth_paragraph <= count or not paragraphs[nth_paragraph - 1]:
        return False
    word = paragraphs[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    return ENDS_WORD.split(word.lower(), maxsplit=1)[0] == first_word.lower()


def number_placeholders(text: str, num_placeholders: int) -> bool:
    return len(PLACEHOLDER.findall(text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    marker = postscript_marker.strip()
    return _pattern(POSTSCRIPTS.get(marker, marker.lower())).search(text.lower()) is not None


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    return len(STARRED.findall(text)) + len(DASHED.findall(text)) == num_bullets


def constrained_response(text: str) -> bool:
    return any(option in text for option in OPTIONS)


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    count = sum(bool(match.strip("*").strip()) for match in HIGHLIGHT.findall(text))
    return count + sum(bool(match[2:-2].strip()) for match in BOLD.findall(text)) >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    splitter = section_spliter.strip()
    try:
        sections = re.split(rf"\s?{splitter}\s?\d+\s?", text)
    except re.error:
        sections = re.split(rf"\s?{re.escape(splitter)}\s?\d+\s?", text)
    return len(sections) - 1 >= num_sections


def json_format(text: str) -> bool:
    text = text.strip()
    for fence in FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    return any(match.lstrip("<").rstrip(">").strip() for match in TITLE.findall(text))


def two_responses(text: str) -> bool:
    responses = [response.strip() for response in text.split(SIX_STARS)]
    nonempty = [response for response in responses if response]
    return all(responses[1:-1]) and len(nonempty) == 2 and nonempty[0] != nonempty[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_checker(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def quotation(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text.startswith('"') and text.endswith('"')


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
    "language:response_language": is_in_language,
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
