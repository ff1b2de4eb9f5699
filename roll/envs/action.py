"""Finding the action in an answer."""

from __future__ import annotations

import regex

from roll.errors import EnvError

_LIMIT_S = 1.0


class ActionPattern:
    """A user's regular expression, whose last group is the action."""

    def __init__(self, pattern: str):
        self._pattern = regex.compile(pattern, regex.DOTALL)

    def find(self, answer: str) -> str | None:
        """The last group of the first match, without space around it; None if there is no match. Raises EnvError for a
        match without end: all episodes of the process wait meanwhile."""
        try:
            match = self._pattern.search(answer, timeout=_LIMIT_S)
        except TimeoutError:
            text = f"action_pattern took longer than {_LIMIT_S:g} s on an answer of {len(answer)} characters"
            raise EnvError(text) from None
        if match is None:
            return None
        return (match[match.re.groups] or "").strip()
