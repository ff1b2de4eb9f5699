"""Two attempts side by side, with the words that only one of them has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from roll.report.command import environment
from roll.report.conversation import episode_of, question_of
from roll.run.records.replay import Recorded

Spans = list[tuple[str, bool]]
"""Runs of words with their blanks, and whether the other text lacks them."""
_WORD = re.compile(r"\s*(?:\w+|[^\w\s])|\s+\Z")


def word_difference(left: str, right: str) -> tuple[Spans, Spans]:
    """Return both texts, cut where they begin or cease to be equal. Blanks alone make no difference.

    Example: "a b c", "a x c" gives [("a", False), (" b", True), (" c", False)] and the same with " x".
    """
    words = _WORD.findall(left), _WORD.findall(right)
    first, second = ([word.strip() for word in side] for side in words)
    parts: tuple[Spans, Spans] = [], []
    for kind, *bounds in SequenceMatcher(None, first, second).get_opcodes():
        for part, side, begin, end in zip(parts, words, bounds[::2], bounds[1::2], strict=True):
            if begin < end:
                part.append(("".join(side[begin:end]), kind != "equal"))
    return parts


def render_pair(left: Recorded, right: Recorded) -> str:
    """A page of two attempts, as a rule at one prompt."""
    records: Sequence[Recorded] = (left, right)
    texts = word_difference(*map(_said, records))
    questions = list(dict.fromkeys(question_of(record.prompt_text) for record in records))
    context = {"sides": zip(("e2", "t2"), records, texts, strict=True), "questions": questions}
    return environment().get_template("pair.html.j2").render(context)


def _said(record: Recorded) -> str:
    """All that an attempt says; of an episode with what it was told."""
    messages = episode_of(record)
    told = [
        "\n".join(filter(None, (f"{each.role}:", each.thinking, each.text, *(f"{n}({a})" for n, a in each.calls))))
        for each in messages
    ]
    return "\n\n".join(told) or record.response_text
