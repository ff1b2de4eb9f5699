"""The final answer of a response: in boxes, in tags, behind "answer is", or the last number of its prose."""

import re
from collections import deque
from typing import Literal, NamedTuple

from roll.utils.answers.forms import written_out

TOKEN = re.compile(r"\\f?boxed\s*\{|\\f?boxed\s+(?P<word>[^\s{]+)|\\.|[{}]", re.DOTALL)
TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
BESIDE = re.compile(r"[\s$]*[,;?/|]?[\s$]*(or|and)?[\s$]*")  # of two boxes that are one answer
SAID = re.compile(
    r"""(?<!this[ ])\b(?:answer(?:[ ]to[ ](?:the|this)[ ]\w+)?|choice|option|ans\.?(?=[ ]?:))[\s*]*
      (?:is|was|(?:would|should|must)[ ]be|:)(?:[\s*,]+(?:therefore|thus|hence|indeed|(?:most[ ])?\w+ly)\b,?)?
      [\s:*]*(?=\S)
    | (?:\u7b54\u6848|\u6b63\u786e\u7684?\u9009\u9879)\s*(?:\u5e94\u8be5)?(?:\u662f|\u4e3a|:|\uff1a)+\s*(?=\S)
    | (?<!\u4e0d)\u9009\u62e9?\s*[:\uff1a]?\s*(?=[(\uff08]?[A-J\uff21-\uff2a])  # I choose
    | ^\#{4}[ \t]*(?=\S)
    | ^[#*]+[ \t]*(?:final[ \t]+)?answer[*:]*[ \t]*\n\s*(?=\S)  # a heading
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
SENTENCE_END = re.compile(r"(?<!^[A-Z])[.!?](?:\s|$)|\n|\u3002")
VALUE = re.compile(
    r"\$\$?(?P<dollars>[^$\n]{1,300})\$\$?|\\\((?P<round>[^\n]{1,300}?)\\\)|\\\[(?P<square>.{1,300}?)\\\]"
    r"|[(\[]-?[^()\[\]\n$]{1,60},[^()\[\]\n$]{1,60}[)\]]"
    r"|(?:\\(?:ln|log|sin|cos|tan|pi)\s+)?[-+\\$\u20ac\u00a3(){}\[\w./^*]{0,40}\d"
    r"(?:[\w.:/^*+\\{}()\[\]%=!-]|,(?=\d)|\s*(?:\\times|\*|x)\s*(?=10[\^*])|\s(?=%|\\(?:frac|sqrt|pi)|\d+/\d)){0,200}"
    r"(?:\s(?:\w{1,9}illion|thousand|hundred|dozen)s?\b)?",
    re.DOTALL,
)
"""A formula between marks of LaTeX, or a run of characters with a digit."""
PROSE = re.compile(r"(?<![\\{A-Za-z])[A-Za-z]{3,}")
JOINED = re.compile(r"[\s*]*,?[\s*]*(?P<by>and|or|\\approx)[\s*]+(?:[A-Za-z]\w?\s*=\s*)?")
MATHEMATICS = re.compile(r"(?:\\[A-Za-z]+|[A-Za-z](?![A-Za-z])|[^A-Za-z\\\n])+")
MINUS = re.compile(r"\b(?:minus|negative)\s+(?=\$?\d)", re.IGNORECASE)
AREA = re.compile(r"(?<=[\d$])\s*(?:[kcm]?m|ft|in|yd|mi|feet|meters|inches|units?)\s*\$?\^\s*\{?[23]\}?\$?")
MARKUP = re.compile(r"</?[A-Za-z]+>|<<[^<>\n]*>>|^>[ \t]", re.MULTILINE)  # tags, sums of GSM8K, quotes
ARROW = re.compile(r"[-=]+>")
REMARK = re.compile(r"(?<=[\w$*%}])\s+\((?!(?:or|maybe|possibly)\b)[^()\n]*\)[.\s]*\Z")
CORRECTED = re.compile(r"(?<=\d)[\s$*]*,\s+(?:and\s+)?not\s[^,;]*\Z")
LISTED = re.compile(r"[\s*]*,[\s*]*(?:[A-Za-z]\w?\s*=\s*)?")
HEDGED = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|between|at least|at most|(?:more|less|greater|fewer) than)(?:\s+be)?"
    r"|\bone of[\d,\s$*]*|n't(?:\s+be)?|\\neq?|\u2260|!=|\\[lg]eq?|[<>\u2264\u2265])[\s$*]*\Z",
    re.IGNORECASE,
)
DENIED = re.compile(
    r"[\s$*]*(?:is|was)(?:\s+(?:wrong|incorrect)\b|(?:n't|\s+not)\s+(?:the\s+)?(?:answer|right|correct)\b)",
    re.IGNORECASE,
)
MOST_CHARS = 500  # of a list of values
NEARBY = 60  # characters before a value that may deny it


class Box(NamedTuple):
    """Positions of a `\\boxed{...}` and of its content. It holds no text, since boxes may be nested by the thousand."""

    start: int
    end: int
    opens: int
    closes: int

    def content(self, text: str) -> str:
        return text[self.opens : self.closes]


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}`, braces inside matched; None if there is none, or it is not closed.

    Examples: r"so \boxed{\frac{1}{2}}." -> r"\frac{1}{2}", r"\boxed{1}, no, \boxed{2" -> None
    """
    boxes, is_open = _boxes(text)
    return boxes[-1].content(text) if boxes and not is_open else None


def boxed_answer(text: str) -> str | None:
    r"""The content of the last box, as `last_boxed`, with the boxes directly before it.

    Examples: r"\boxed{4} or \boxed{5}" -> "4 or 5", r"\boxed{1}, $\boxed{2}$" -> "1, 2"
    """
    boxes, is_open = _boxes(text)
    if is_open or not boxes:
        return None
    *before, last = boxes
    answer, begins = last.content(text), last.start
    for box in reversed(before):
        between = BESIDE.fullmatch(text, box.end, begins) if box.end <= begins else None
        if between is None:
            break
        answer = f"{box.content(text)}{' or ' if between[1] == 'or' else ', '}{answer}"
        begins = box.start
    return answer


def has_open_box(text: str) -> bool:
    r"""True if the last `\boxed{` is never closed: the answer was cut off in it."""
    return _boxes(text)[1]


def boxes_of(text: str) -> list[Box]:
    """The boxes that are closed, in the order of their beginnings."""
    return _boxes(text)[0]


def _boxes(text: str) -> tuple[list[Box], bool]:
    """The closed boxes in the order of their beginnings, and whether one that is never closed begins behind them. An
    empty one counts only where all are: it is a word on where the answer goes."""
    boxes: list[Box] = []
    braces: list[re.Match[str]] = []  # that are open
    for token in TOKEN.finditer(text):
        if token.lastgroup == "word":  # \boxed 5
            start = token.start("word")
            boxes.append(Box(*token.span(), start, start + len(token["word"].rstrip("$.,"))))
        elif token[0].endswith("{") and token[0] != "\\{":
            braces.append(token)
        elif token[0] == "}" and braces and (opened := braces.pop())[0] != "{":
            boxes.append(Box(opened.start(), token.end(), opened.end(), token.start()))
    boxes = sorted(
        [box for box in boxes if not text[box.opens : box.closes].isspace() and box.opens < box.closes] or boxes
    )
    last_open = max((brace.start() for brace in braces if brace[0] != "{"), default=-1)
    return boxes, last_open > (boxes[-1].start if boxes else -1)


def last_tagged(text: str) -> str | None:
    """Content of the last `<answer>...</answer>`; None if there is none."""
    matches = TAGGED.findall(text)
    return matches[-1].strip() if matches else None


def last_said(text: str) -> str | None:
    """The rest of the sentence behind the last "answer is", "answer:", "####" or heading "Answer"; None if there is
    none.

    Example: "So the answer is (C). Done." -> "(C)"
    """
    said = deque(SAID.finditer(text), maxlen=1)
    return SENTENCE_END.split(text[said[0].end() :], maxsplit=1)[0].strip() if said else None


def final_answer(text: str) -> tuple[str | None, Literal["boxed", "tag", "said", ""]]:
    r"""Return a response's final answer, and how it is marked: the last `\boxed{}` with those beside it (none if the
    last one is never closed), else the last `<answer>...</answer>`, else the sentence behind the last "answer is" or
    "answer:".

    Examples: r"It is \boxed{B}." -> ("B", "boxed"), "So the answer is (C). Done." -> ("(C)", "said")
    """
    boxed = boxed_answer(text)
    if boxed is not None:
        return boxed.strip(), "boxed"
    if has_open_box(text):
        return None, ""
    tagged = last_tagged(text)
    if tagged is not None:
        return tagged, "tag"
    said = last_said(text)
    return (None, "") if said is None else (said, "said")


def answer_in_prose(text: str) -> str | None:
    r"""The answer of a text without a box, or of its last `<answer>`: the last number or formula behind "answer is",
    else the last number of the text, with the formula that holds it, the values it is joined to, and a word that denies
    it. None if there is none.

    Examples: "it costs $1,234.50 in all." -> "$1,234.50", "it is 4 or 5" -> "4 or 5", "it is not 5" -> "not 5",
    r"so it is $\sqrt{5}$" -> r"\sqrt{5}", "The answer is x." -> "x"
    """
    tagged = last_tagged(text)
    text = ARROW.sub(" \n ", MARKUP.sub(" ", text if tagged is None else tagged))
    text = AREA.sub(" ", MINUS.sub("-", written_out(text))).strip()
    said = last_said(text)
    text = CORRECTED.sub("", text if said is None else said)
    remark = REMARK.search(text)
    if remark is not None and any(map(str.isdigit, text[: remark.start()])):  # 72 (48 + 24).
        text = text[: remark.start()]
    is_working = said is None and "=" in text and re.search("[,;]", text) is not None  # 2x = 48, x = 24
    if len(text) <= 2 * NEARBY and MATHEMATICS.fullmatch(text) and not is_working:
        return text.strip(" *") or None
    return _last_value(text, is_said=said is not None) or (said and said.strip(" *.")) or None


def _last_value(text: str, is_said: bool) -> str | None:
    """A formula without a digit counts where no number is in the text, and in a sentence that says what the answer
    is."""
    values = [value for value in VALUE.finditer(text) if not PROSE.search(value["dollars"] or "")]
    last = next((value for value in reversed(values) if is_said or any(map(str.isdigit, value[0]))), None)
    if last is None:
        return _content(values[-1]) if values else None
    answer, place, joint = _content(last), values.index(last), JOINED
    while (
        place
        and len(answer) < MOST_CHARS
        and (between := joint.fullmatch(text, values[place - 1].end(), values[place].start()))
    ):
        place -= 1
        by = between["by"] if joint is JOINED else ","
        answer = f"{_content(values[place])}{', ' if by in (',', 'and') else f' {by} '}{answer}"
        joint = LISTED
    begins = values[place].start()
    hedge = HEDGED.search(text, max(0, begins - NEARBY), begins)
    if hedge is not None:
        return f"{hedge[0].strip(' $*')} {answer}"
    return f"not {answer}" if DENIED.match(text, last.end()) else answer


def _content(value: re.Match[str]) -> str:
    if value.lastgroup is not None:
        return value[value.lastgroup].strip()
    text = value[0].strip("*").rstrip(".,:;!*=-")
    while text and text[-1] in ")]}" and text.count(text[-1]) > text.count("([{"[")]}".index(text[-1])]):
        text = text[:-1].rstrip(".,:;!*=-")
    while text and text[0] in "([{" and text.count(text[0]) > text.count(")]}"["([{".index(text[0])]):
        text = text[1:]
    return text
