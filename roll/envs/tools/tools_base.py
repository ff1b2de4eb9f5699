"""What a tool is: something that an answer can call by name, and whose result is the next thing that is seen."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence


class ToolError(Exception):
    """A call that came to nothing; the policy is told the text."""


class Tool(ABC):
    """One object per episode. `<name>what to do</name>` in an answer calls it; `find` may know other forms.

    `run` may wait (a server, a sandbox). What it raises but ToolError fails the episode.
    """

    name: str
    instruction: str
    """How it is called and what it gives, for the prompt."""
    example: str = ""
    """Something to call it with, for checks."""

    def find(self, answer: str) -> tuple[int, str] | None:
        """Position and text of the first call; None if there is no call."""
        return first_between(answer, self.name)

    @abstractmethod
    def run(self, call: str) -> str:
        """The result, as the policy sees it. Raises ToolError."""


def first_between(answer: str, tag: str) -> tuple[int, str] | None:
    """Example: ("so <calc>1 + 1</calc>", "calc") -> (3, "1 + 1")."""
    match = re.search(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", answer, re.DOTALL)
    return None if match is None else (match.start(), match[1].strip())


def first_call(tools: Sequence[Tool], answer: str) -> tuple[Tool, str] | None:
    """The earliest call in an answer: what stands behind it was written without its result."""
    found = [(*call, tool) for tool in tools if (call := tool.find(answer)) is not None]
    if not found:
        return None
    _, call, tool = min(found, key=lambda one: one[0])
    return tool, call
