"""Reads answers of gpt-oss (harmony): messages on channels, of which those to a function are its calls."""

import re
from typing import Any

from roll.pipeline.agentic.proxy.transcript.argument_values import JSON_DECODER

_HEADER = re.compile(
    r"\s*(?:<\|start\|>assistant)?(?P<before>\s+to=[^\s<]+)?\s*<\|channel\|>\s*(?P<channel>\w+)"
    r"(?P<behind>\s+to=[^\s<]+)?[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
)
_END = re.compile(r"\s*(?:<\|(?:end|call|return)\|>|(?=<\|start\|>)|\Z)")
_FUNCTIONS = "functions."
ANALYSIS, FINAL = "analysis", "final"


def read_harmony(text: str) -> tuple[str, str, list[tuple[str, Any]]]:
    """Read the messages of an answer: its thinking, its text for the reader, and its calls. A remark before a call is
    part of the thinking, as the chat template has it. Raises ValueError if a message is not whole."""
    if "<|channel|>" not in text and "<|message|>" not in text:
        return "", text, []
    thoughts: list[str] = []
    remarks: list[str] = []
    finals: list[str] = []
    calls: list[tuple[str, Any]] = []
    place = 0
    while place < len(text.rstrip()):
        if (header := _HEADER.match(text, place)) is None:
            raise ValueError("a message without a whole header")
        place = header.end()
        if to := (header["before"] or header["behind"] or "").strip().removeprefix("to="):
            arguments, place = JSON_DECODER.raw_decode(text, place)
            calls.append((to.removeprefix(_FUNCTIONS), arguments))
            end = _END.match(text, place)
        else:
            end = _END.search(text, place)
            body = text[place : end.start() if end else None]
            {ANALYSIS: thoughts, FINAL: finals}.get(header["channel"], remarks).append(body)
        if end is None:
            raise ValueError("a call does not end")
        place = end.end()
    if calls:
        return "\n".join((*thoughts, *remarks)), "".join(finals), calls
    return "\n".join(thoughts), "\n".join((*remarks, *finals)), []
