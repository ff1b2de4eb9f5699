"""Rewards for answers that are a choice or a short text: `multiple_choice`, `crossthinkqa` and `general_rule`."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any, NamedTuple

from roll.rewards.base import RewardInput, RewardResult, checks_rows, requires
from roll.rewards.config import RewardType
from roll.utils.answers.final_answer import final_answer
from roll.utils.answers.prose import own_words
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
    r"|\((?P<bracketed>[A-Z])\)|\b(?-i:(?P<right>[A-Z]))\)?\s+(?:fits|matches|is\s+(?:(?:the\s+)?(?:correct|right|best|better|stronger)|incorrect|false|wrong|untrue|not\s+(?:true|correct|right)))\b"
    r"|(?:\bnot|n't)\s+\(?(?-i:[A-Z])\)?,?\s+but\s+(?:rather\s+)?\(?(?-i:(?P<instead>[A-Z]))\b"
    r"|(?:\b(?:it(?:'s|\s+is|\s+must\s+be)|hence|thus|therefore|so|actually|choose|select|pick|go\s+with),?\s+"
    r"|(?<!\b[A-Z])(?:\s*[:\uff1a\u2013\u2014]\s*|\s+-\s+|,\s+)[\s*]*)\(?(?-i:(?P<last>[A-Z]))[\s.!*)]*\Z",
    re.IGNORECASE,
)
_NOT_BEFORE = r"\b(?:not|never|nor|neither|(?<!true )(?<!correct )except|(?:eliminat|exclud)(?:es?|ing)|"
_NOT_BEFORE += r"rul(?:es?|ing)\s+out|(?:reject|discard)(?:s|ing)?|dismiss(?:es|ing)?"
_TO_A_CHOICE = r"[\s:*]*(?:either\s+)?(?:\(?[A-Z]\)?\s+n?or\s+)*(?:the\s+)?(?:option|choice|answer)?[\s:*]*$"
_NO_ANSWER = r"out\b|(?:ruled\s+out|eliminated|excluded|rejected|discarded|dismissed)\b"
_NO_ANSWER += r"|(?:not|never)(?:\s+(?:the|an?|my))?(?:\s+\w+)?\s+(?:answer|choice|option|it)\b"
_TRUE = r"(?:\w+\s+)?(?:correct|right|true|valid|accurate)\b"
_FAILS = r"[)*\s]*(?:fails\b|do(?:es)?(?:n't|\s+not)\s+(?:work|fit|hold|apply|match)\b|can(?:not|'t|\s+not)\s+be\b)"
_OTHERS_SAY = (
    r"(?:one|some|many|most|people|students|you|others)\s+(?:\w+\s+){0,3}(?:think|choose|pick|select|say|guess|believe)"
)
_OTHERS_SAY += r"(?:\s+(?:of|that))?"
_WRONG = r"(?<!which is )(?<!that is )(?:wrong|incorrect)"
_IN_PASSING = rf"\b(?:although|though|while|whilst|{_OTHERS_SAY})"
_SEEMS = r"(?:\w+\s+)?(?:(?:looks?|seems?|appears?|sounds?|feels?)\b|(?:is|be)\s+(?:\w+\s+)?"
_TEMPTING = "plausible|tempting|attractive|appealing|close|possible|reasonable|popular|considered|part(?:ial)?ly"
_SEEMS += rf"(?:{_TEMPTING})\b)"
_CONCEDES = rf"[)*\s]*{_SEEMS}[^.;!?]*[,;.\s]\s*(?:but|however|yet|though|although|nevertheless|still)\b"
_CONCEDES += r"(?!,?\s+(?:it|this|that)\s+(?:is|fits|works|holds)\b(?!\s+(?:not\b|an?\b|wrong|incorrect|false)))"
"""That a choice "looks plausible, but ...": what follows is the answer. "..., but it is right" is none of these."""
RETRACTS = re.compile(r"\b(?:wait|actually|on second thoughts?)\b", re.I)
TEMPTS = re.compile(rf"[)*\s]*\w+\s+(?:\w+\s+)?(?:{_TEMPTING})\b", re.I)
BUT = re.compile(r"\b(?:however|actually|wait|but|still|yet|though|although|admittedly),?\s*$", re.I)
"""Patterns around a choice that only tempts after another was made: "(C). However, (A) looks tempting."."""
_MISLEADS = r"(?:an?|the)\s+(?:\w+\s+)?(?:mistake|distract[oe]r|trap|error|decoy|red\s+herring)\b|too\s+\w+"
_IS = r"[)*\s]*(?:is|are|was|would\s+be)(?P<contracted>n't)?\s+"


class Denials(NamedTuple):
    """Patterns before or behind a choice that deny it."""

    before: re.Pattern[str]
    behind: re.Pattern[str]


USUAL = Denials(
    re.compile(
        rf"(?:{_NOT_BEFORE}|cannot\s+be|{_IN_PASSING}|{_WRONG})|n't(?:\s+be)?){_TO_A_CHOICE}",
        re.I,
    ),
    re.compile(
        rf"{_FAILS}|{_CONCEDES}|{_IS}(?:{_NO_ANSWER}|{_MISLEADS}|(?:un|not\s+)likely\b|(?:not|never)\s*(?:[.;!]|$)|wrong\b|incorrect\b|false\b|untrue\b|(?:not|never)\s+(?:(?:the|an?|my)\s+)?{_TRUE}"
        rf"|(?(contracted)(?:(?:the|an?|my)\s+)?(?:\w+\s+)?(?:answer|choice|option|correct|right|true|it)\b|(?!)))",
        re.I,
    ),
)
"""Patterns for usual questions. A sentence that a choice "is not a mammal" may be the answer, so it denies nothing."""
OF_FALSE_ONES = Denials(
    re.compile(rf"(?:{_NOT_BEFORE}|cannot\s+be)|n't(?:\s+be)?){_TO_A_CHOICE}", re.I),
    re.compile(
        rf"{_IS}(?:{_NO_ANSWER}|(?(contracted)(?:(?:the|an?|my)\s+)?(?:\w+\s+)?(?:answer|choice|option|it)\b"
        rf"|(?:an?\s+)?(?:correct|right|true|valid|accurate)\b(?!\s+(?:answer|choice|option))))",
        re.I,
    ),
)
"""Denials in answers to a question for the choice that is not true: "(B) is not true" names it, "(A) is true" does
not."""
ASKS_FOR_A_FALSE_ONE = re.compile(
    r"\b(?:which|what|select|identify|choose|find|pick|name)\b[^.?!\n]*\b(?:not|cannot|can't|isn't|aren't|false|incorrect|untrue|"
    r"invalid|wrong|inaccurate|except|exception)\b|\ball\b[^.?!\n]*\bexcept\b",
    re.IGNORECASE,
)
JSON = re.compile(r"\s*(?:```\w*\s*)?\{")
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
    "answer:" says, else all of a response that is a choice, else the field "answer" of its JSON, else the last
    `(B)`, `option B`, `I choose B`, `B is correct` or, at the end, `so B` in it that is not denied ("not (B)"). Where
    the question asks which is not true, "(B) is not true" names (B), and "(A) is true" denies (A).

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
        denials = OF_FALSE_ONES if ASKS_FOR_A_FALSE_ONE.search(sample.question[-MAX_CHARS:]) else USUAL
        text = own_words(sample.answer)
        answer, place = final_answer(text)
        if answer is None or (place == "said" and (DENIED.match(answer) or (JSON.match(text) and FIELD.search(text)))):
            answer = self._unmarked(text, denials)
        is_boxed = place == "boxed"
        is_right = answer is not None and any(self._equal(answer, truth, options, denials) for truth in truths)
        is_right = is_right and (is_boxed or not self._require_boxed)
        score = self._scores[(0 if is_right else 2) + (0 if is_boxed else 1)]
        metrics = {"answer_found": float(answer is not None), "boxed": float(is_boxed), "success": float(is_right)}
        return RewardResult(score, metrics, {"answer": answer})

    def _equal(self, answer: str, truth: str, options: Options, denials: Denials) -> bool:
        wanted, chosen = self._choices(truth, options), self._choices(answer, options, denials)
        if wanted and chosen:
            return wanted == chosen
        text = self._text_of(truth)
        return bool(text) and same_text(text, plain(answer))

    def _text_of(self, truth: str) -> str:
        """Example: of "B. Paris" it is "paris"."""
        behind = re.match(rf"\(?[{self._letters}][.):]\s*(?=\S)", truth)
        return plain(truth[behind.end() :] if behind else truth)

    def _choices(self, text: str, options: Options, denials: Denials = USUAL) -> frozenset[str]:
        """The letters that a text stands for; empty if it is no choice."""
        if len(text) > MAX_CHARS:
            return frozenset()
        text = OPTION_WORD.sub("", unwrapped(text))
        one = re.match(
            rf"[(\[]?([{self._letters}])(?:[)\].:]|\s*\(|(?=\s+[-\u2013\u2014]\s|;\s|,[\u4e00-\u9fff])|"
            r",?\s+(?:because|since|as|which|not|rather)\b|$)",
            text,
        )
        if one is not None and denials.behind.match(text, one.end(1)):
            return frozenset()
        if one is not None and not self._is_list(text[one.end(1) :]):
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

    def _is_list(self, rest: str) -> bool:
        """Example: of "(A), (C)" the first letter is not all."""
        return re.match(rf"{_BETWEEN}[{self._letters}](?:[)\].:,;\s]|$)", rest) is not None

    def _unmarked(self, text: str, denials: Denials) -> str | None:
        """A response that says nothing of an answer: all of it, or the last choice that is written as one."""
        text = text.strip()
        if fields := FIELD.findall(text):
            return fields[-1].strip()
        retracted = RETRACTS.split(text)[-1]
        others = (one for one in MENTION.finditer(retracted) if not TEMPTS.match(retracted, _end(one)))
        if not all(_is_denied(retracted, one, denials) for one in others):
            text = retracted
        mentions = list(MENTION.finditer(text))
        if mentions and not self._choices(text, [], denials):
            meant = [mention for mention in mentions if not _is_denied(text, mention, denials)]
            while len(meant) > 1 and BUT.search(text, 0, meant[-1].start()) and TEMPTS.match(text, _end(meant[-1])):
                meant.pop()
            if len(meant) > 1 and JOINED.fullmatch(text, meant[-2].end(), meant[-1].start()):
                return text[meant[-2].start() : meant[-1].end()]
            return meant[-1][meant[-1].lastgroup or 0].upper() if meant else None
        return text or None


def _is_denied(text: str, mention: re.Match[str], denials: Denials) -> bool:
    """Example: "It is not (B)." does not choose B."""
    before = text[max(0, mention.start() - DENIAL_CHARS) : mention.start()]
    return denials.before.search(before) is not None or denials.behind.match(text, _end(mention)) is not None


def _end(mention: re.Match[str]) -> int:
    """The end of a mention's letter."""
    return mention.end(mention.lastgroup or 0)


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
