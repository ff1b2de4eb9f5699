"""Reads answers of gpt-oss (harmony): messages on channels, of which those to a function are its calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HARMONY: Mapping[str, Any] = {"format": "harmony"}
"""Stands for this form where a response template would: no template of transformers describes it."""
_HEADER = re.compile(
    r"(?:<\|start\|>assistant)?(?P<before>\s+to=[^\s<]+)?\s*<\|channel\|>\s*(?P<channel>\w+)(?P<behind>\s+to=[^\s<]+)?"
    r"[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"
)
_END = re.compile(r"<\|(?:end|call|return|start)\|>")
_FUNCTIONS = "functions."
ANALYSIS, FINAL = "analysis", "final"


@dataclass(frozen=True)
class HarmonyAnswer:
    """`content`: what is for the reader. `calls`: functions that are called, with their arguments as text. A remark
    before a call is part of the thinking, as the chat template has it."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]


def writes_harmony(template_source: str) -> bool:
    """Whether a chat template writes this form with tools."""
    return "<|channel|>" in template_source and "<|call|>" in template_source


def read_harmony(text: str) -> HarmonyAnswer:
    """Read the messages of an answer. Raises ValueError if a header is not whole."""
    headers = list(_HEADER.finditer(text))
    if not headers and "<|channel|>" not in text and "<|message|>" not in text:
        return HarmonyAnswer("", text, ())
    if not headers or text[: headers[0].start()].strip() or text.count("<|channel|>") != len(headers):
        raise ValueError("a message without a whole header")
    thoughts: list[str] = []
    remarks: list[str] = []
    finals: list[str] = []
    calls: list[tuple[str, str]] = []
    for header in headers:
        body = _END.split(text[header.end() :], maxsplit=1)[0]
        to = (header["before"] or header["behind"] or "").strip().removeprefix("to=")
        if to:
            calls.append((to.removeprefix(_FUNCTIONS), body))
        elif header["channel"] == ANALYSIS:
            thoughts.append(body)
        else:
            (finals if header["channel"] == FINAL else remarks).append(body)
    if calls:
        return HarmonyAnswer("\n".join((*thoughts, *remarks)), "".join(finals), tuple(calls))
    return HarmonyAnswer("\n".join(thoughts), "\n".join((*remarks, *finals)), ())
