"""A tool of the user's own that any answer calls, once per episode."""

from __future__ import annotations

from roll.envs.tools.base import Tool


class EagerTool(Tool):
    name = "eager"
    instruction = "Say anything."

    def __init__(self) -> None:
        self._was_called = False

    def find(self, answer: str) -> tuple[int, str] | None:
        if self._was_called:
            return None
        self._was_called = True
        return 0, answer

    def run(self, call: str) -> str:
        return f"{len(call)} characters"
