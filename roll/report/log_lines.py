"""What the driver's log warns of, equal lines once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LOG_LINE = re.compile(r"^(\S+ \S+) ([WEC]) \[[^\]]*\] (.*)$")


@dataclass(frozen=True)
class LogLine:
    """A warning or an error. `count`: of equal ones, this being the last."""

    moment: str
    level: str
    text: str
    count: int


class WarningLines:
    """Those of the lines given so far; lines that differ in numbers alone are equal."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], LogLine] = {}

    def add(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if match := _LOG_LINE.match(line.decode("utf-8", "replace").rstrip("\n")):
                key = match[2], re.sub(r"\d+", "0", match[3])
                before = self._lines.pop(key, None)
                self._lines[key] = LogLine(match[1], match[2], match[3], 1 + (before.count if before else 0))

    def found(self) -> list[LogLine]:
        """The latest last."""
        return list(self._lines.values())
