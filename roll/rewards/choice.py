"""Rewards for answers that are a choice or a short text: `multiple_choice`, `crossthinkqa` and `general_rule`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from roll.rewards.base import RewardInput, RewardResult, checks_rows, requires
from roll.rewards.config import RewardType
from roll.utils.answers.final_answer import final_answer
from roll.utils.truths import OptionsColumn, accepted_answers, options_in, truth_problem

SCORES: Mapping[RewardType, tuple[float, float, float, float]] = {
    "hard": (1.0, 1.0, 0.0, 0.0),
    "soft": (1.0, 0.5, -0.5, -1.0),
    "loose": (1.0, 1.0, -1.0, -1.0),
    "strict": (1.0, -1.0, -1.0, -1.0),
}
r"""Scores of an answer that is right in a \boxed{}, right outside, wrong in a box, wrong outside. All but hard as in
ROLL."""
MAX_CHARS = 2000  # a longer text is no choice, and taking it apart would only take time
WRAPPERS = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|boldsymbol|mbox)\s*\{([^{}]*)\}")
MARKS = re.compile(r"\\[()\[\]]|\*\*")
OPTION_WORD = re.compile(
    r"^(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)s?\s*(?:is|are)?\s*:?\s*(?=\S)", re.IGNORECASE
)
SEVERAL = re.compile(r"\s*(?:,|;|/|&|\+|\band\b|\bas\s+well\s+as\b|\bplus\b|\s)\s*", re.IGNORECASE)
_JOINS = r"(?:[&/+|\u6216\u548c\u53ca]|(?:or|and|as\s+well\s+as|plus|also|maybe|possibly|perhaps|alternatively|even)\b)"
_BETWEEN = rf"(?i:[)\].:\s(\u2013\u2014-]*(?:(?:[,;\u3001]|{_JOINS})[\s(\[]*)+)"  # of two choices
JOINED = re.compile(rf"[)*\s,]*(?:{_JOINS}[\s,(]*)+", re.IGNORECASE)
MENTION = re.compile(
    r"\b(?:(?:option|choice)|I(?:'d|\s+would)?\s+(?:choose|pick|select|go\s+with)(?:\s+(?:option|choice))?)\s+\(?(?P<named>[A-Z])\b"
    r"|\((?P<bracketed>[A-Z])\)|\b(?-i:(?P<right>[A-Z]))\)?\s+is\s+(?:(?:the\s+)?(?:correct|right|best)|wrong|incorrect)\b"
    r"|(?:\b(?:it(?:'s|\s+is|\s+must\s+be)|hence|thus|therefore|so|choose|select|pick|go\s+with),?\s+"
    r"|\s*[:\uff1a\u2013\u2014]\s*[*]*)\(?(?-i:(?P<last>[A-Z]))[\s.!*)]*\Z",
    re.IGNORECASE,
)
DENIED_BEFORE = re.compile(r"(?:\b(?:not|nor|neither|except|rul(?:e|ing)\s+out)|n't)(?:\s+be)?[\s(*]*$", re.IGNORECASE)
DENIED_BEHIND = re.compile(r"[)*\s]*(?:is|was)(?:n't|\s+not\b|\s+(?:wrong|incorrect|false)\b)", re.IGNORECASE)
JSON = re.compile(r"\s*(?:```\w*\s*)?\{")
FIELD = re.compile(r"[\"'](?:answer|final_answer|choice|option)[\"']\s*:\s*[\"']([^\"']*)[\"']", re.IGNORECASE)
DENIAL_CHARS = 20  # before a choice, that are looked at
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
ARTICLES = re.compile(r"^(?:a|an|the)\s+")


NUMBER = re.compile(r"[-+]?\d+")
LETTERS = "ABCDEFGHIJ"
Options = list[tuple[str, str]]
"""Letters of options, each with what stands for it: its plain text, or a label that is no letter."""


def text_problem(row: Mapping[str, Any], options_column: OptionsColumn = None, letters: str = LETTERS) -> str | None:
    """Return the problem of a row for `general_rule`: a ground truth that is none, or an index beyond its options."""
    if problem := truth_problem(row, options_column, letters, may_be_json=False):
        return problem
    options = options_in(row, options_column, letters)
    shown = [plain(text) for option in options for text in (option.label, option.text)]
    for text in accepted_answers(row.get("ground_truth"), options) if options else ():
        if NUMBER.fullmatch(text) and not any(same_text(plain(text), one) for one in shown):
            return f"its ground truth is {text}, but the row has {len(options)} options, counted from 0"
    return None


def choice_problem(row: Mapping[str, Any], options_column: OptionsColumn = None, letters: str = LETTERS) -> str | None:
    """Return the problem of a row for `multiple_choice`: also the index of an option in a row without options."""
    truth = row.get("ground_truth")
    if NUMBER.fullmatch(str(truth)) and not options_in(row, options_column, letters):
        return (
            f"its ground truth is {truth}, and the row has no options: name their column, or a list of columns with "
            "one each, as reward_args.options_column"
        )
    return text_problem(row, options_column, letters)


@checks_rows(text_problem)
@requires("ground_truth")
class GeneralRule:
    r"""Is the answer the choice, or the text, that the ground truth names?

    The answer is the last `\boxed{}` after thinking, else the last `<answer>`, else what the last "answer is" or
    "answer:" says, else all of a response that is a choice, else the field "answer" of its JSON, else the last
    `(B)`, `option B`, `I choose B`, `B is correct` or, at the end, `so B` in it; one that is denied ("not (B)", "(B) is
    wrong") counts only if all are.

    A ground truth is a letter ("B", "(B)", "B. Paris"), several ("A, C", in any order), a text, or what else
    `accepted_answers` reads, as the index of an option. If the row has options (in `options_column`, else as
    `options_in` finds them), the text of one is as good as its letter. Texts are compared without case, punctuation
    around them and a leading article; numbers by value.

    `reward_type`: hard is 1 or 0, the others are ROLL's (`SCORES`). With `require_boxed` only an answer in a box is
    right.
    """

    def __init__(
        self,
        reward_type: RewardType = "hard",
        letters: str = LETTERS,
        options_column: OptionsColumn = None,
        require_boxed: bool = False,
    ):
        if reward_type not in SCORES:
            raise ValueError(f"reward_type: {reward_type!r} must be one of {', '.join(SCORES)}")
        if not letters.isalpha() or len(set(letters)) != len(letters) or letters != letters.upper():
            raise ValueError(f"letters: {letters!r} must be different capital letters")
        self._scores = SCORES[reward_type]
        self._letters = letters
        self._options_column = options_column
        self._require_boxed = require_boxed

    def __call__(self, sample: RewardInput) -> RewardResult:
        held = options_in(sample.payload, self._options_column, self._letters)
        truths = accepted_answers(sample.ground_truth, held)
        options = [
            (one.label if one.label in set(self._letters) else letter, plain(text))
            for letter, one in zip(self._letters, held, strict=False)
            for text in (one.text, one.label)
        ]
        answer, place = final_answer(sample.answer)
        if answer is None or (place == "said" and JSON.match(sample.answer) and FIELD.search(sample.answer)):
            answer = self._unmarked(sample.answer)
        is_boxed = place == "boxed"
        is_right = answer is not None and any(self._equal(answer, truth, options) for truth in truths)
        is_right = is_right and (is_boxed or not self._require_boxed)
        score = self._scores[(0 if is_right else 2) + (0 if is_boxed else 1)]
        metrics = {"answer_found": float(answer is not None), "boxed": float(is_boxed), "success": float(is_right)}
        return RewardResult(score, metrics, {"answer": answer})

    def _equal(self, answer: str, truth: str, options: Options) -> bool:
        wanted, chosen = self._choices(truth, options), self._choices(answer, options)
        if wanted and chosen:
            return wanted == chosen
        text = self._text_of(truth)
        return bool(text) and same_text(text, plain(answer))

    def _text_of(self, truth: str) -> str:
        """Example: of "B. Paris" it is "paris"."""
        behind = re.match(rf"\(?[{self._letters}][.):]\s*(?=\S)", truth)
        return plain(truth[behind.end() :] if behind else truth)

    def _choices(self, text: str, options: Options) -> frozenset[str]:
        """The letters that a text stands for; empty if it is no choice."""
        if len(text) > MAX_CHARS:
            return frozenset()
        text = OPTION_WORD.sub("", unwrapped(text))
        one = re.match(
            rf"[(\[]?([{self._letters}])(?:[)\].:]|\s*\(|(?=\s+[-\u2013\u2014]\s|;\s|,[\u4e00-\u9fff])|"
            r",?\s+(?:because|since|as|which|not|rather)\b|$)",
            text,
        )
        if one is not None and not self._is_list(text[one.end(1) :]):
            return frozenset() if DENIED_BEHIND.match(text, one.end(1)) else frozenset(one[1])
        parts = [part.strip("()[].") for part in SEVERAL.split(text.strip(" ."))]
        if len(parts) == 1 and len(text) > 1 and "".join(sorted(set(text))) == text and set(text) <= set(self._letters):
            parts = list(text)
        letters = [part for part in parts if len(part) == 1 and part in self._letters]
        if len(letters) == len(parts) > 0:
            return frozenset(letters)
        if len(text) == 1 and text.upper() in self._letters:
            return frozenset(text.upper())
        return frozenset(letter for letter, option in options if option and same_text(option, plain(text)))

    def _is_list(self, rest: str) -> bool:
        """Example: of "(A), (C)" the first letter is not all."""
        return re.match(rf"{_BETWEEN}[{self._letters}](?:[)\].:,;\s]|$)", rest) is not None

    def _unmarked(self, text: str) -> str | None:
        """A response that says nothing of an answer: all of it, or the last choice that is written as one."""
        text = text.strip()
        if fields := FIELD.findall(text):
            return fields[-1].strip()
        mentions = list(MENTION.finditer(text))
        if not mentions or self._choices(text, []):
            return text or None
        meant = [mention for mention in mentions if not _is_denied(text, mention)] or mentions
        if len(meant) > 1 and JOINED.fullmatch(text, meant[-2].end(), meant[-1].start()):
            return text[meant[-2].start() : meant[-1].end()]
        return meant[-1][meant[-1].lastgroup or 0].upper()


def _is_denied(text: str, mention: re.Match[str]) -> bool:
    """Example: "It is not (B)." and "(B) is wrong" deny B."""
    before = text[max(0, mention.start() - DENIAL_CHARS) : mention.start()]
    letter_ends = mention.end(mention.lastgroup or 0)
    return DENIED_BEFORE.search(before) is not None or DENIED_BEHIND.match(text, letter_ends) is not None


@checks_rows(choice_problem)
class MultipleChoice(GeneralRule):
    """`general_rule` for letters and options alone: a number in a row without options is refused."""


class CrossThinkQA(GeneralRule):
    """`general_rule` with ROLL's rewards from -1 to 1: soft unless told otherwise."""

    def __init__(self, reward_type: RewardType = "soft", letters: str = LETTERS, options_column: OptionsColumn = None):
        super().__init__(reward_type, letters, options_column)


def unwrapped(text: str) -> str:
    r"""The text without LaTeX, Markdown and quotes around it. Example: r"**\text{(B)}**" -> "(B)"."""
    text = unicodedata.normalize("NFKC", text).strip()
    if len(text) > MAX_CHARS:
        return text
    text = MARKS.sub("", text)
    while (inner := WRAPPERS.sub(r"\1", text).strip(" \t\n$*_`\"'")) != text:
        text = inner
    return text


def plain(text: str) -> str:
    """The text in the form in which texts are compared. Example: " The Great Wall. " -> "great wall"."""
    text = " ".join(unwrapped(text).casefold().split()).strip(" .,;:!?()[]{}\"'\u3002\uff0c")
    return ARTICLES.sub("", THOUSANDS.sub("", text))


def same_text(one: str, other: str) -> bool:
    """True if two plain texts are the same. Example: "1000.0" and "1000" are the same."""
    if one == other:
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False
