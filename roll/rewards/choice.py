"""Rewards for answers that are a choice or a short text: `multiple_choice`, `crossthinkqa` and `general_rule`."""

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
_JOINED = (
    r"[)\].:*\s(-]*(?:[,;&/+|]|(?i:and/or|or|and|as\s+well\s+as|plus|possibly|perhaps)\b)[*\s(\[]*"
    r"(?:(?i:or|and|possibly)\s+\(?)?"
)
JOINED = re.compile(_JOINED)  # of two choices
MENTION = re.compile(
    r"\((?P<bracketed>[A-Z])\)|(?i:\b(?:option|choice|choose|pick|select|go\s+with))\s+\(?(?P<named>[A-Z])\b"
    r"|\b(?P<right>[A-Z])\)?\s+(?:fits|matches|is\s+(?:(?:the\s+)?(?:correct|right|best)|incorrect|wrong|false|not))\b"
    r"|(?i:\b(?:it\s+is|it's|be|hence|therefore|so|actually|but)[,\s]+|[:\uff1a,\u2014]\s*)[\s*(]*(?P<last>[A-Z])[)*\s.!]*\Z"
)
DENIED_BEFORE = re.compile(
    r"(?:\b(?:not|never|nor|neither|except|cannot(?:\s+be)?|wrong|(?:everything|anything|all)(?:\s+but)?|rul(?:e|ing)\s+out|eliminat(?:e|ing)|discard)|n't(?:\s+be)?)"
    r"[\s:*(]*(?:option|choice|answer)?[\s:*(]*\Z",
    re.IGNORECASE,
)
DENIED_BEHIND = re.compile(
    r"[)*\s]*(?:(?:is|was)(?:n't|\s+not|\s+never)\b(?!\s+(?:an?|the\s+only)\b)|is\s+(?:wrong|incorrect|false|ruled\s+out)\b"
    r"|can(?:not|'t)\s+be\b|fails\b|do(?:es)?(?:n't|\s+not)\s+(?:work|fit)\b)",
    re.IGNORECASE,
)
ASKS_FOR_A_FALSE_ONE = re.compile(
    r"\b(?:which|what|select|identify|choose|find|pick|name)\b[^.?!\n]*\b(?:not|cannot|can't|isn't|aren't|false"
    r"|incorrect|untrue|invalid|wrong|except)\b|\ball\b[^.?!\n]*\bexcept\b",
    re.IGNORECASE,
)
FIELD = re.compile(r"[\"'](?:answer|final_answer|choice|option)[\"']\s*:\s*[\"']([^\"']*)[\"']", re.IGNORECASE)
DENIED = re.compile(r"(?:not|never|n't)\b", re.IGNORECASE)
DENIAL_CHARS = 40  # before a choice, that are looked at
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
    "answer:" says, else the field "answer" of its JSON, else all of a response that is a choice, else the last `(B)`,
    `option B`, `B is correct` or, at the end, `so B` in it that is not denied ("not (B)").

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
        text = sample.answer
        answer, place = final_answer(text)
        if answer is None or (place == "said" and (DENIED.match(answer) or text.lstrip(" `\njson").startswith("{"))):
            answer = self._unmarked(text, ASKS_FOR_A_FALSE_ONE.search(sample.question[-MAX_CHARS:]) is not None)
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
        if len(text) > MAX_CHARS:
            return frozenset()
        text = OPTION_WORD.sub("", unwrapped(text))
        one = re.match(
            rf"[(\[]?([{self._letters}])(?:[)\].:]|\s*\(|(?=\s+[-\u2013\u2014]\s|;\s|,[\u4e00-\u9fff])|"
            r",?\s+(?:because|since|as|which|not|rather)\b|$)",
            text,
        )
        list_goes_on = rf"{_JOINED}[{self._letters}](?:[)\].:,;\s]|$)"  # of "(A), (C)" the first letter is not all
        if one is not None and re.match(list_goes_on, text[one.end(1) :]) is None:
            return frozenset(one[1])
        parts = [part.strip("()[].") for part in SEVERAL.split(text.strip(" ."))]
        if len(parts) == 1 and len(text) > 1 and "".join(sorted(set(text))) == text and set(text) <= set(self._letters):
            parts = list(text)
        letters = [part for part in parts if len(part) == 1 and part in self._letters]
        if len(letters) == len(parts) > 0:
            return frozenset(letters)
        if len(text) == 1 and text.upper() in self._letters:
            return frozenset(text.upper())
        return frozenset(letter for letter, option in options if option and same_text(option, plain(text)))

    def _unmarked(self, text: str, asks_for_a_false_one: bool) -> str | None:
        """A response that says nothing of an answer: the field of its JSON, the last choice in it that is not denied,
        or all of it."""
        text = text.strip()
        if fields := FIELD.findall(text):
            return fields[-1].strip()
        mentions = list(MENTION.finditer(text))
        meant = [mention for mention in mentions if not _is_denied(text, mention, asks_for_a_false_one)]
        if not mentions or (len(mentions) == len(meant) == 1 and self._choices(text, [])):
            return text or None
        if len(meant) > 1 and JOINED.fullmatch(text, meant[-2].end(), meant[-1].start()):
            return text[meant[-2].start() : meant[-1].end()]
        return meant[-1][meant[-1].lastgroup or 0] if meant else None


def _is_denied(text: str, mention: re.Match[str], asks_for_a_false_one: bool) -> bool:
    """Example: "It is not (B)." does not choose B. To a question for the false choice "B is not true" does."""
    start, end = mention.start(), mention.end(mention.lastgroup or 0)
    return DENIED_BEFORE.search(text, max(0, start - DENIAL_CHARS), start) is not None or (
        not asks_for_a_false_one and DENIED_BEHIND.match(text, end) is not None
    )


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
