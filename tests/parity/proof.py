"""The page on which parity tests leave what they measured: one row for each case of the tests that are marked `proof`.

`pytest tests/parity --proof` writes it, with `-m` or `-k` for some of the cases; the others keep their figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

Row = tuple[str, ...]
PAGE = Path(__file__).parents[2] / "reports" / "parity.md"
SEEN = ("gradients", "weights", "norm", "log-probs")
HEAD = f"| {' | '.join((*SEEN, 'test'))} |"
UNKNOWN: Row = ("not run",) * len(SEEN)


@dataclass(frozen=True)
class Difference:
    """The largest one that was seen, and the one at which the test fails."""

    seen: float
    tolerance: float

    def __str__(self) -> str:
        seen = f"{self.seen:.1e}" if self.seen else "0"
        return f"{seen} ({self.tolerance:.0e})".replace("e-0", "e-")


@dataclass(frozen=True)
class Differences:
    """From Hugging Face and torch: of the first update's gradients, of weights after every update, of the norms of the
    gradients (as a share), and of the log-probs, or values, before the first update."""

    gradients: Difference | None
    weights: Difference | None
    norm: Difference | None
    log_probs: Difference | None


_measured: dict[str, list[Differences]] = {}


def record(differences: Differences) -> None:
    """Of the test that is running; a test that compares several ranks does so once for each."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    _measured.setdefault(short(test), []).append(differences)


def short(test: str) -> str:
    return test.removeprefix("tests/parity/")


def measured() -> dict[str, Row]:
    """The rows of what was recorded in this process."""
    return {test: figures(seen) for test, seen in _measured.items()}


def figures(seen: list[Differences]) -> Row:
    columns = zip(*((d.gradients, d.weights, d.norm, d.log_probs) for d in seen), strict=True)
    return tuple(str(max(filter(None, column), key=lambda each: each.seen, default="-")) for column in columns)


def read(page: str) -> dict[str, Row]:
    """The rows of a page by their tests."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ") and "::" in line]
    return {cells[-1].strip("`"): tuple(cells[:-1]) for cells in lines}


def merged(old: dict[str, Row], tests: Iterable[str], new: dict[str, Row]) -> dict[str, Row]:
    """The rows of a page after a run that knows `tests`: all cases of their files, run or not. Rows of other files
    stay."""
    there = set(tests)
    files = {file_of(test) for test in there}
    others = {test: row for test, row in old.items() if file_of(test) not in files}
    return others | {test: new.get(test, old.get(test, UNKNOWN)) for test in there}


def file_of(test: str) -> str:
    return test.partition("::")[0]


def write(page: str, rows: dict[str, Row]) -> str:
    """The page with these rows; its text stays."""
    before, _, _ = page.partition(HEAD)
    lines = [HEAD, "|" + "---|" * (len(SEEN) + 1)]
    for test, row in sorted(rows.items(), key=lambda item: (item[1] == UNKNOWN, item[0])):
        lines.append(f"| {' | '.join((*row, f'`{test}`'))} |")
    return before + "\n".join(lines) + "\n"
