"""`ifeval`: does the answer follow the instructions that its prompt gives?"""

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from roll.rewards.base import RewardInput, RewardResult, checks_rows, requires
from roll.rewards.ifeval import instructions as ifeval
from roll.rewards.ifeval.instructions import INSTRUCTIONS, count_capital_words, count_sentences, count_words, holds
from roll.utils.truths import as_data

# The same instructions as RLVR-IFeval's data gives them (Lambert et al. 2024, arXiv:2411.15124; ROLL's `ifeval` rows):
# `{"func_name": "verify_keywords", "keyword_list": [...]}`. Several ask for an exact number where IFEval's have a
# relation.

BULLET = re.compile(r"^[ \t]*[*+-][ \t]+(?=\S)(?![*+\- \t]*$)", re.MULTILINE)
HIGHLIGHT = re.compile(r"(?<!\*)(\*{1,3})(?![\s*])[^\n*]+(?<!\s)\1(?!\*)")
PLACEHOLDER = re.compile(r"\[([^\[\]\n]+)\]")
TITLE = re.compile(r"<<([^\n<>]+)>>")
SIX_STARS = re.compile(r"(?<!\*)\*{6}(?!\*)")
FENCE = re.compile(r"\A```(?:json)?\s*\n?(.*?)\n?```\Z", re.DOTALL | re.IGNORECASE)
FIRST_WORD_END = re.compile(r"[\s.,?!'\"\u2019\u201d:;)]")
DIVIDER = re.compile(r"(?:^|(?<=\s))\* ?\* ?\*(?=\s|$)")
BLANK_LINE = re.compile(r"\n[ \t]*\n")


def keywords(text: str, keyword_list: Sequence[str]) -> bool:
    return all(keyword.lower() in text.lower() for keyword in keyword_list)


def keyword_frequency(text: str, word: str, N: int) -> bool:
    return len(re.findall(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE)) == N


def forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(
        re.search(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE) for word in forbidden_words
    )


def letter_frequency(text: str, letter: str, N: int) -> bool:
    return text.count(letter) == N


def has_num_words(text: str, N: int, quantifier: str) -> bool:
    return holds(count_words(text), quantifier, N)


def sentences(text: str, N: int, quantifier: str) -> bool:
    return holds(count_sentences(text), quantifier, N)


def paragraphs(text: str, N: int, first_word: str, i: int) -> bool:
    paragraphs = blocks(text)
    if len(paragraphs) != N or not 1 <= i <= N:
        return False
    start = paragraphs[i - 1].lstrip("'\"\u2018\u201c").lower()
    wanted = first_word.strip().lower()
    return start == wanted or (start.startswith(wanted) and FIRST_WORD_END.match(start, len(wanted)) is not None)


def paragraph_count(text: str, N: int) -> bool:
    paragraphs = divided(text)
    return paragraphs is not None and len(paragraphs) == N


def placeholders(text: str, N: int) -> bool:
    return sum(bool(inside.strip()) for inside in PLACEHOLDER.findall(text)) >= N


def bullet_points(text: str, N: int) -> bool:
    return len(BULLET.findall(text)) == N


def choice(text: str, options: Sequence[str] | str) -> bool:
    """The response is one of the options, quotes and a final dot aside."""
    wanted = re.split(r"[/,|]|\bor\b", options.strip("()[] ")) if isinstance(options, str) else options
    return _bare(text) in {_bare(str(option)) for option in wanted}


def _bare(text: str) -> str:
    return text.strip(" \t\n\"'.").casefold()


def highlighted_sections(text: str, N: int) -> bool:
    return len(HIGHLIGHT.findall(text)) >= N


def sections(text: str, N: int, section_splitter: str) -> bool:
    """Lines that begin with the mark and a number, behind what Markdown writes before a heading or a bold word."""
    mark = rf"^[ \t#*_>]*{re.escape(section_splitter.strip())}\s?\d+"
    return len(re.findall(mark, text, re.MULTILINE)) == N


def repeat_prompt(text: str, original_prompt: str) -> bool:
    answer_text, wanted = text.strip().lower(), original_prompt.strip().lower()
    return answer_text.startswith(wanted) and re.search(r"\w", answer_text[len(wanted) :]) is not None


def postscript(text: str, postscript_marker: str) -> bool:
    letters = re.fullmatch(r"((?:P\.\s?)+)S\.?", postscript_marker.strip(), re.IGNORECASE)
    mark = re.escape(postscript_marker.strip())
    if letters is not None:
        mark = r"P\.\s?" * letters[1].upper().count("P") + r"S\b\.?"
    return re.search(rf"(?:^|(?<=[\s*_\"]))(?:{mark})\W*\w", text, re.IGNORECASE) is not None


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


def end_checker(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().strip('"').lower())


def quotation(text: str) -> bool:
    text = text.strip()
    return len(text) > 2 and text.startswith('"') and text.endswith('"')


def capital_words(text: str, N: int, quantifier: str) -> bool:
    return holds(count_capital_words(text), quantifier, N)


def divided(text: str) -> list[str] | None:
    """The paragraphs between markdown dividers (`***` or `* * *`, with white space around them). An empty one at either
    end is none; None if there is an empty one in the middle."""
    return trimmed(DIVIDER.split(text))


def trimmed(pieces: list[str]) -> list[str] | None:
    """The pieces, stripped, without an empty one at either end; None if one in the middle is empty."""
    stripped = [piece.strip() for piece in pieces]
    first = 1 if stripped and not stripped[0] else 0
    last = len(stripped) - (1 if len(stripped) > first and not stripped[-1] else 0)
    return stripped[first:last] if all(stripped[first:last]) else None


def blocks(text: str) -> list[str]:
    """The paragraphs between empty lines, without empty ones."""
    return [piece.strip() for piece in BLANK_LINE.split(text) if piece.strip()]


FUNCTIONS: Mapping[str, Callable[..., bool]] = {
    "verify_keywords": keywords,
    "verify_keyword_frequency": keyword_frequency,
    "validate_forbidden_words": forbidden_words,
    "verify_letter_frequency": letter_frequency,
    "validate_response_language": ifeval.is_in_language,
    "verify_paragraph_count": paragraph_count,
    "validate_word_constraint": has_num_words,
    "verify_sentence_constraint": sentences,
    "validate_paragraphs": paragraphs,
    "verify_postscript": postscript,
    "validate_placeholders": placeholders,
    "verify_bullet_points": bullet_points,
    "validate_title": title,
    "validate_choice": choice,
    "validate_highlighted_sections": highlighted_sections,
    "validate_sections": sections,
    "validate_json_format": json_format,
    "validate_repeat_prompt": repeat_prompt,
    "validate_two_responses": two_responses,
    "validate_uppercase": str.isupper,
    "validate_lowercase": str.islower,
    "validate_frequency_capital_words": capital_words,
    "validate_end": end_checker,
    "validate_quotation": quotation,
    "validate_no_commas": ifeval.no_comma,
}


@dataclass(frozen=True)
class Instruction:
    id: str
    check: Callable[..., bool]
    args: Mapping[str, Any]

    def is_followed(self, text: str) -> bool:
        """An empty answer follows none."""
        return bool(text.strip()) and self.check(text, **self.args)


def loose_versions(text: str) -> list[str]:
    """Example: of the lines "*a*" and "b" they are both lines, "*a*", "b" and nothing, each with and without
    asterisks."""
    lines = text.split("\n")
    cuts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [version for cut in cuts for version in (cut, cut.replace("*", ""))]


def instructions_of(row: Mapping[str, Any]) -> list[Instruction]:
    """Raises ValueError for what is no instruction, or has not the arguments that it needs."""
    data = row.get("ground_truth") if row.get("instruction_id_list") is None else row
    while not isinstance(data, Mapping) and (inner := _only(as_data(data))) is not data:  # a list of one, or a text
        data = inner
    if not isinstance(data, Mapping):
        raise ValueError(f"the row has no instruction_id_list, and its ground_truth is no instruction: {data!r:.200}")
    if "func_name" in data:
        args = {key: value for key, value in data.items() if key != "func_name"}
        return [_instruction(str(data["func_name"]), args, FUNCTIONS)]
    ids = as_data(data.get("instruction_id_list", data.get("instruction_id")))
    ids = [ids] if isinstance(ids, str) else ids
    kwargs = as_data(data.get("kwargs"))
    kwargs = [None] * len(ids or ()) if kwargs is None else [kwargs] if isinstance(kwargs, Mapping) else list(kwargs)
    if not ids or len(ids) != len(kwargs):
        raise ValueError(
            f"instruction_id_list {ids!r:.200} must name instructions, with one of kwargs {kwargs!r:.200} each"
        )
    return [_instruction(str(name), as_data(args) or {}, INSTRUCTIONS) for name, args in zip(ids, kwargs, strict=True)]


def _instruction(name: str, args: Mapping[str, Any], known: Mapping[str, Callable[..., bool]]) -> Instruction:
    if name not in known:
        raise ValueError(
            f"{name!r} is no instruction of IFEval; those of IFBench and IF-RLVR are not here. Leave such rows out, or "
            f"check them in a reward of your own. Known: {', '.join(known)}"
        )
    args = {key: value for key, value in args.items() if value is not None}
    try:
        inspect.signature(known[name]).bind("", **args)
    except TypeError as error:
        raise ValueError(f"instruction {name} with {dict(args)!r:.200}: {error}") from None
    return Instruction(name, known[name], args)


def _only(data: Any) -> Any:
    return data[0] if isinstance(data, list | tuple) and len(data) == 1 else data


def row_problem(row: Mapping[str, Any]) -> str | None:
    try:
        instructions_of(row)
    except ValueError as error:
        return str(error)
    return None


@requires(("instruction_id_list", "ground_truth"))
@checks_rows(row_problem)
class IFEval:
    """The instructions that an answer follows, of those that the row gives: their share (`reward_type: soft`), or 1 if
    all and 0 if not (`hard`).

    What follows thinking is judged. `mode: strict` takes it as it is; `loose` is content if one of eight versions of it
    follows the instruction: with or without asterisks, the first line and the last line, as in the paper (section 2.2).

    A row has the columns of IFEval's data, `instruction_id_list` and `kwargs` (an object or null for each), or its
    ground truth is an object with these, or a function of RLVR-IFeval's with its arguments (`func_name`); as data or as
    JSON text, or in a list of one. Arguments that are null count as absent.
    """

    def __init__(self, reward_type: Literal["hard", "soft"] = "hard", mode: Literal["strict", "loose"] = "strict"):
        if reward_type not in ("hard", "soft"):
            raise ValueError(
                f"reward_type: {reward_type!r} must be hard or soft; strict and loose are reward_args.mode"
            )
        if mode not in ("strict", "loose"):
            raise ValueError(f"mode: {mode!r} must be strict or loose")
        self._is_soft = reward_type == "soft"
        self._is_loose = mode == "loose"

    def __call__(self, sample: RewardInput) -> RewardResult:
        instructions = instructions_of({"ground_truth": sample.ground_truth, **sample.payload})
        text = sample.answer.strip("\n")
        versions = loose_versions(text) if self._is_loose else [text]
        verdicts = [any(map(instruction.is_followed, versions)) for instruction in instructions]
        share = sum(verdicts) / len(verdicts)
        metrics = {"instructions_followed": share, "success": float(all(verdicts))}
        by_id = {instruction.id: verdict for instruction, verdict in zip(instructions, verdicts, strict=True)}
        return RewardResult(share if self._is_soft else float(all(verdicts)), metrics, {"instructions": by_id})
