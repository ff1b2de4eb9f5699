"""What the doctor finds, and how findings are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from roll.errors import describe
from roll.utils.imports import line_of

Level = Literal["ok", "hint", "problem"]
_PLURAL: Mapping[Level, str] = {"ok": "ok", "hint": "hints", "problem": "problems"}
_WIDTH = 9  # of the column of levels, and of what stands below it


@dataclass(frozen=True)
class Finding:
    """One finding of the doctor.

    - `where`: a YAML key, a shell variable or a command
    - `fix`: what to do; empty if nothing is wrong, or nobody can mend it
    - `seen`: the line of a log that shows it
    """

    level: Level
    what: str
    where: str = ""
    fix: str = ""
    seen: str = ""


Look = Callable[[], Iterable[Finding]]


@dataclass(frozen=True)
class Section:
    """`looks`: by what each looks at, in words. `folder`: where a run is to write."""

    title: str
    looks: Mapping[str, Look]
    folder: Path | None = None


def findings(section: Section) -> Iterator[Finding]:
    """All that its looks find. One that fails is a finding, too, and the others go on."""
    for name, look in section.looks.items():
        try:
            yield from look()
        except Exception as error:
            what = f"{name}: this check failed with {describe(error)}{line_of(error, __file__)}"
            yield Finding("problem", what, fix="The other checks were made; please report this failure")


def lines(finding: Finding) -> Iterator[str]:
    """One line; below it what was seen, and what there is to do."""
    yield f"  {finding.level:<{_WIDTH}}{finding.what}"
    if finding.seen:
        yield f"  {'':<{_WIDTH}}> {finding.seen}"
    if at := ": ".join(filter(None, (finding.where, finding.fix))):
        yield f"  {'':<{_WIDTH}}{at}"


def summary(found: Sequence[Finding]) -> str:
    """Example: "12 ok, 1 hint, 2 problems"."""
    counts = Counter(finding.level for finding in found)
    return ", ".join(f"{counts[level]} {level if counts[level] == 1 else many}" for level, many in _PLURAL.items())
