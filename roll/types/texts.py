"""Texts of an attempt, as a reward or a person reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BESIDE = "beside"
"""Form of a recorded picture that is a file in the folder of its record."""


@dataclass(frozen=True)
class ParsedMessage:
    """A message of a conversation, as a person reads it. `calls`: tool calls as names and arguments."""

    role: str
    text: str
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Turn:
    """One exchange with an environment, as a person reads it. `num_pictures`: those of its row that it showed first.
    `said`: the same as messages, the policy's last, where their roles are known."""

    observation: str
    response: str
    action: str | None  # None: the response held none
    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    num_pictures: int = 0
    said: tuple[ParsedMessage, ...] = ()

    @staticmethod
    def of(values: Mapping[str, Any]) -> Turn:
        messages = [dict(message) for message in values.get("said", ())]
        said = [ParsedMessage(**{**message, "calls": tuple(map(tuple, message["calls"]))}) for message in messages]
        return Turn(**{**values, "said": tuple(said)})


@dataclass(frozen=True)
class RowTexts:
    """Texts of a row that a reward or a person reads: the answer without special tokens (but with those that mark
    thinking), the answer with all of them, and the turns."""

    response_text: str = ""
    raw_text: str = ""
    turns: tuple[Turn, ...] = ()
