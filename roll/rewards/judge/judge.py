"""Reads a score from a judge's text. A text without a clear verdict is an error: nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import regex

from roll.utils.answers.final_answer import last_boxed
from roll.utils.thinking import after_thinking

VerdictForm = Literal["yes_no", "score", "json", "boxed", "pattern"]
YES_NO: Mapping[str, float] = {"yes": 1.0, "no": 0.0}
MATCH_LIMIT_S = 2.0  # for a pattern of the user's own, on one reply

_BETWEEN = r"[\s:=*_`\"'\-\\{]*"
_BEFORE_NUMBER = r"[\s:=*_`\"']*"  # a hyphen is its sign
_VERDICT = r"\b(?:verdict|judge?ment|decision|final\s+answer)\b(?:\s+is\b)?"
_SCORE = r"\b(?:score|rating|grade)\b(?:\s+is\b)?"
_NUMBER = r"(?P<number>[-+]?(?:\d+(?:\.\d+)?|\.\d+))(?:\s*/\s*(?P<of>\d+(?:\.\d+)?))?(?!\w|\.\d)"
_MARKS = " \t\n.,;:!*_`\"'()[]{}$\\-"
_LAST_BRACES = 100


class NoVerdict(ValueError):
    """The reply has none, or several that disagree."""


class VerdictReader:
    """`reader(reply)` is a score: of words as `scores` says, of numbers their place in `score_range`, from 0 to 1.

    Only what follows the judge's thinking counts. Raises NoVerdict with the reason; building it raises ValueError for a
    pattern that is none.
    """

    def __init__(
        self,
        form: VerdictForm,
        pattern: str | None = None,
        scores: Mapping[str, float] | None = None,
        score_range: tuple[float, float] = (0.0, 1.0),
    ):
        self._form = form
        self._scores = {word.casefold(): score for word, score in (scores or YES_NO).items()}
        self._low, self._high = score_range
        words = "|".join(regex.escape(word) for word in sorted(self._scores, key=len, reverse=True))
        self._word = regex.compile(rf"(?<!\w)(?P<word>{words})(?!\w)", regex.IGNORECASE)
        self._marked_word = regex.compile(rf"{_VERDICT}{_BETWEEN}(?:boxed\{{)?{self._word.pattern}", regex.IGNORECASE)
        self._marked_number = regex.compile(rf"{_SCORE}{_BEFORE_NUMBER}{_NUMBER}", regex.IGNORECASE)
        self._number = regex.compile(_NUMBER)
        try:
            self._pattern = None if pattern is None else regex.compile(pattern, regex.DOTALL)
        except regex.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        if self._pattern is not None and self._pattern.groups > 1:
            raise ValueError(f"{pattern!r} has {self._pattern.groups} groups, it may have one: the verdict")
        readers: Mapping[VerdictForm, Callable[[str], float]] = {
            "yes_no": self._from_words,
            "score": self._from_score,
            "json": self._from_json,
            "boxed": self._from_box,
            "pattern": self._from_pattern,
        }
        self._read = readers[form]

    @property
    def lowest(self) -> float:
        """The score of the worst answer."""
        return 0.0 if self._form == "score" else min(self._scores.values())

    def __call__(self, reply: str) -> float:
        text = after_thinking(reply).strip()
        if not text:
            raise NoVerdict("only thinking" if reply.strip() else "an empty reply")
        return self._read(text)

    def _from_words(self, text: str) -> float:
        if marked := list(self._marked_word.finditer(text)):
            return self._of_word(marked[-1]["word"])
        found = {self._of_word(word) for word in (_first_word(text), text.splitlines()[-1]) if self._is_word(word)}
        found = found or {self._of_word(match["word"]) for match in self._word.finditer(text)}
        if len(found) == 1:
            return found.pop()
        both, neither = " and ".join(self._scores), " nor ".join(self._scores)
        raise NoVerdict(f"it says both {both}" if len(found) > 1 else f"it says neither {neither}")

    def _from_score(self, text: str) -> float:
        marked = list(self._marked_number.finditer(text))
        match = marked[-1] if marked else self._number.fullmatch(text.strip(_MARKS.replace("-", "").replace(".", "")))
        if match is None:
            raise NoVerdict("it has no score")
        if match["of"] is not None and float(match["of"]) != self._high:
            raise NoVerdict(f"a score of {match['number']} out of {match['of']}, not out of {self._high:g}")
        return self._in_range(float(match["number"]))

    def _from_json(self, text: str) -> float:
        starts = [index for index, character in enumerate(text) if character == "{"][-_LAST_BRACES:]
        for start in reversed(starts):
            try:
                found, _ = json.JSONDecoder(parse_int=float).raw_decode(text, start)
            except (ValueError, RecursionError):
                continue
            for key in ("score", "verdict"):
                if key in found:
                    return self._of_value(found[key])
        raise NoVerdict("it holds no JSON object with `score` or `verdict`")

    def _from_box(self, text: str) -> float:
        found = last_boxed(text)
        if found is None:
            raise NoVerdict(r"it has no \boxed{}")
        return self._of_value(found.strip().removeprefix(r"\text{").strip(_MARKS.replace("-", "")))

    def _from_pattern(self, text: str) -> float:
        assert self._pattern is not None
        try:
            matches = list(self._pattern.finditer(text, timeout=MATCH_LIMIT_S, concurrent=True))
        except TimeoutError:
            raise NoVerdict(f"judge_verdict_pattern takes more than {MATCH_LIMIT_S:g} s on it") from None
        if not matches:
            raise NoVerdict("judge_verdict_pattern does not match")
        return self._of_value(matches[-1][self._pattern.groups] or "")

    def _of_value(self, value: Any) -> float:
        """A verdict that stands by itself."""
        if isinstance(value, bool):
            return float(value)
        if isinstance(value, float):
            return self._in_range(value)
        if isinstance(value, str) and self._is_word(value):
            return self._of_word(value)
        if isinstance(value, str) and (match := self._number.fullmatch(value.strip())) and match["of"] is None:
            return self._in_range(float(match["number"]))
        raise NoVerdict(f"{str(value)[:50]!r} is neither {' nor '.join(self._scores)}, nor a number")

    def _is_word(self, text: str) -> bool:
        return text.strip(_MARKS).casefold() in self._scores

    def _of_word(self, word: str) -> float:
        return self._scores[word.strip(_MARKS).casefold()]

    def _in_range(self, number: float) -> float:
        if not self._low <= number <= self._high:
            raise NoVerdict(f"{number:g} is not from {self._low:g} to {self._high:g}")
        return (number - self._low) / (self._high - self._low)


def _first_word(text: str) -> str:
    """The word with which a text begins, if a mark ends it. Example: "Yes, it is" begins with Yes, "No doubt" has
    none."""
    match = regex.match(r"\W*(\w+)\W*?(?=[.,;:!\n]|$)", text)
    return match[1] if match else ""
