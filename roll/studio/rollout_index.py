"""The recorded rollouts of a run, to be asked for by reward, domain, step, ending and text. A table of SQLite in a
private file of its own, so that a page asks for the rows that it shows and no others."""

from __future__ import annotations

import hashlib
import math
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from roll.errors import ConfigError
from roll.report.conversation import question_of
from roll.report.run_files import RunFiles
from roll.run.records.replay import Recorded, parse
from roll.studio.live_run import LiveRun, Mark, mark_of
from roll.studio.run_list import RunList
from roll.utils.files import open_regular
from roll.utils.text import storable, visible

_PREVIEW = 160
_LARGEST = 2**62
_TABLE = """CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY, file TEXT, start INTEGER, size INTEGER, step INTEGER, kind TEXT, domain TEXT,
    group_id TEXT, reward REAL, advantage REAL, finish TEXT, tokens INTEGER, turns INTEGER, prompt TEXT, response TEXT,
    truth TEXT, text TEXT, task TEXT)"""
_SHOWN = (
    "id", "step", "kind", "domain", "group_id", "reward", "advantage", "finish", "tokens", "turns", "prompt",
    "response", "truth",
)  # fmt: skip
_OF_GROUP = {
    "id": "min(id)", "reward": "avg(reward)", "advantage": "NULL", "tokens": "round(avg(tokens))",
    "turns": "round(avg(turns))", "spread": "max(reward) - min(reward)", "samples": "count(*)",
}  # fmt: skip
"""Columns of a group that its samples do not have in common."""
SORTABLE = frozenset((*_SHOWN, *_OF_GROUP))
WORST_AND_BEST, STEP_BEFORE, FIRST_STEP = "worst and best", "with the step before", "with the first step"
"""Ways to show two attempts beside each other."""
SIGNS = {"above 0": ">", "0": "=", "below 0": "<"}
_INSERT = f"INSERT INTO rollouts VALUES (NULL{', ?' * 17})"


@dataclass(frozen=True)
class Query:
    """Conditions on rows; an empty one holds for all. `failed`: those without a reward alone. `text`: is in the prompt,
    an answer, an observation or the ground truth, large or small letters alike. `advantage`: its sign, one of SIGNS.
    `groups`: a row for each prompt of a step, of those samples for which the conditions hold."""

    domain: str = ""
    kind: str = ""
    finish: str = ""
    least_reward: float | None = None
    most_reward: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    failed: bool = False
    text: str = ""
    advantage: str = ""
    groups: bool = False

    def rows(self) -> tuple[str, list[Any]]:
        """The statement that selects the rows with their columns, and its values."""
        where, values = self.where()
        columns = {name: name for name in _SHOWN} | (_OF_GROUP if self.groups else {"spread": "NULL", "samples": "1"})
        group = " GROUP BY file, domain, group_id" if self.groups else ""
        named = ", ".join(f"{column} AS {name}" for name, column in columns.items())
        return f"SELECT {named} FROM rollouts{where}{group}", values

    def where(self) -> tuple[str, list[Any]]:
        filters: list[tuple[str, Any]] = [
            ("domain = ?", self.domain or None),
            ("kind = ?", self.kind or None),
            ("finish = ?", self.finish or None),
            ("reward >= ?", self.least_reward),
            ("reward <= ?", self.most_reward),
            ("step >= ?", self.first_step),
            ("step <= ?", self.last_step),
            ("instr(text, ?) > 0", self.text.casefold() or None),
        ]
        used = [(clauses, value) for clauses, value in filters if value is not None]
        clauses = [clauses for clauses, _ in used] + (["reward IS NULL"] if self.failed else [])
        clauses += [f"advantage {SIGNS[self.advantage]} 0"] if self.advantage in SIGNS else []
        return (f" WHERE {' AND '.join(clauses)}" if clauses else ""), [value for _, value in used]


@dataclass(frozen=True)
class Rows:
    """Some rows of a query, and how many it has in all."""

    rows: list[dict[str, Any]]
    count: int


class RolloutIndex:
    """Index of one run's rollouts. Threads may query it at once; one of them may update it. A query waits for no
    file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base = sqlite3.connect("", check_same_thread=False)  # a file that nobody else sees, gone at the end
        self._base.execute(_TABLE)
        self._base.execute("CREATE INDEX of_file ON rollouts (file)")
        self._base.execute("CREATE INDEX of_task ON rollouts (task)")
        self._files: dict[Path, tuple[int, Mark]] = {}
        self.version = 0
        """Grows with what is in it."""

    def update(self, run: RunFiles) -> None:
        """Reads the files that are new or were written again, and forgets those that are gone."""
        current: dict[Path, tuple[int, Mark]] = {}
        kinds: dict[Path, str] = {}
        for kind, step, path in run.records():
            if (mark := mark_of(path)) is not None:
                current[path], kinds[path] = (step, mark), kind
        old = [path for path, known in self._files.items() if current.get(path) != known]
        new = {
            path: list(_rows(path, kinds[path])) for path, known in current.items() if self._files.get(path) != known
        }
        with self._lock, self._base:
            self._base.executemany("DELETE FROM rollouts WHERE file = ?", [(str(path),) for path in old])
            for rows in new.values():
                self._base.executemany(_INSERT, rows)
        self._files = current
        self.version += bool(old or new)

    def rows(self, query: Query, start: int, end: int, order: str = "step", descending: bool = True) -> Rows:
        """`order`: one of SORTABLE; equal ones in the order in which they were recorded."""
        if order not in SORTABLE:
            raise ValueError(f"{order} is no column to sort by")
        inner, values = query.rows()
        way = "DESC" if descending else "ASC"
        statement = f"SELECT * FROM ({inner}) ORDER BY {order} {way}, id LIMIT ? OFFSET ?"
        with self._lock:
            cursor = self._base.execute(statement, [*values, max(0, end - start), start])
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
        return Rows([dict(zip(names, row, strict=True)) for row in rows], self.count(query))

    def count(self, query: Query) -> int:
        inner, values = query.rows()
        with self._lock:
            return self._base.execute(f"SELECT count(*) FROM ({inner})", values).fetchone()[0]

    def values(self, column: str) -> list[str]:
        """Return the values in a column, in order."""
        if column not in SORTABLE:
            raise ValueError(f"{column} is no column")
        with self._lock:
            return [row[0] for row in self._base.execute(f"SELECT DISTINCT {column} FROM rollouts ORDER BY {column}")]

    def neighbour(self, query: Query, number: int, by: int, order: str, descending: bool, other_group: bool) -> int:
        """The row that stands `by` rows (1 or -1) from a row of a query; with `other_group` the first of the next or
        previous group that is not its own. The same row where there is none."""
        if order not in SORTABLE:
            raise ValueError(f"{order} is no column to sort by")
        inner, values = query.rows()
        way = "DESC" if descending else "ASC"
        statement = f"SELECT id, step, kind, domain, group_id FROM ({inner}) ORDER BY {order} {way}, id"
        with self._lock:
            rows = self._base.execute(statement, values).fetchall()
        places = {row[0]: place for place, row in enumerate(rows)}
        numbers = [sibling for sibling, *_ in self.siblings(number)] if query.groups else [number]
        place = next((places[each] for each in numbers if each in places), None)
        if place is None:
            return rows[0][0] if rows else number
        ahead = rows[place + 1 :] if by > 0 else rows[:place][::-1]
        if other_group:
            ahead = [row for row in ahead if row[1:] != rows[place][1:]]
            if by < 0:  # back to where that group begins
                ahead = list(takewhile(lambda row: row[1:] == ahead[0][1:], ahead))[::-1]
        return ahead[0][0] if ahead else number

    def siblings(self, number: int) -> list[tuple[int, float | None, float | None]]:
        """The attempts at the prompt of a row, itself among them, as they were recorded: row, reward and advantage."""
        statement = """SELECT b.id, b.reward, b.advantage FROM rollouts a JOIN rollouts b ON a.file = b.file
            AND a.domain = b.domain AND a.group_id = b.group_id WHERE a.id = ? ORDER BY b.id"""
        with self._lock:
            return self._base.execute(statement, (number,)).fetchall()

    def same_prompt(self, number: int) -> list[tuple[int, int, str, float | None]]:
        """The groups of a row's prompt, its own among them, by step: first row, step, kind and mean reward."""
        statement = """SELECT min(b.id), b.step, b.kind, avg(b.reward) FROM rollouts a
            JOIN rollouts b ON a.task = b.task AND a.domain = b.domain
            WHERE a.id = ? GROUP BY b.file, b.group_id ORDER BY b.step, b.kind"""
        with self._lock:
            return self._base.execute(statement, (number,)).fetchall()

    def pair(self, number: int, how: str) -> tuple[int, int] | None:
        """The rows that stand left and right where a row is chosen; None where there are no two. Of another step of
        the same prompt it is the attempt at the same place in its group."""
        siblings = self.siblings(number)
        if how == WORST_AND_BEST:
            rated = sorted((reward, row) for row, reward, _ in siblings if reward is not None)
            return (rated[0][1], rated[-1][1]) if len(rated) > 1 else None
        groups = [(row, kind) for row, _, kind, _ in self.same_prompt(number)]
        place = next((place for place, (row, _) in enumerate(groups) if row == siblings[0][0]), 0)
        earlier = [row for row, kind in groups[:place] if kind == groups[place][1]]
        if not earlier:
            return None
        others = self.siblings(earlier[-1 if how == STEP_BEFORE else 0])
        return others[min(number - siblings[0][0], len(others) - 1)][0], number

    def record(self, number: int) -> Recorded | None:
        """The whole of a row; None where it is gone."""
        with self._lock:
            location = self._base.execute("SELECT file, start, size FROM rollouts WHERE id = ?", (number,)).fetchone()
        if location is None:
            return None
        try:
            with open_regular(Path(location[0])) as file:
                file.seek(location[1])
                return parse(file.read(location[2]).decode("utf-8"), 1, Path(location[0]).parent)
        except (OSError, ValueError):  # written again meanwhile
            return None


def _rows(path: Path, kind: str) -> Iterator[Sequence[Any]]:
    """Yield the rows that can be read; a killed run left its last file unfinished."""
    start = 0
    try:
        with open_regular(path) as file:
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in lines:
        size = len(line)
        try:
            record = parse(line.decode("utf-8"), 1, path.parent) if line else None
        except ValueError:
            record = None
        if record is not None and max(record.response_tokens, abs(record.step)) < _LARGEST:
            yield _row(record, kind, str(path), start, size)
        start += size + 1


def _row(record: Recorded, kind: str, path: str, start: int, size: int) -> Sequence[Any]:
    said = [text for turn in record.turns for text in (turn.observation, turn.response)] or [record.response_text]
    whole = "\n".join([record.prompt_text, *said, record.ground_truth or "", str(record.extra.get("failure", ""))])
    earned = (_finite(record.reward), _finite(record.advantage))
    head = (path, start, size, record.step, kind, storable(record.domain), storable(str(record.group_id)), *earned)
    counts = (storable(record.finish_reason), record.response_tokens, len(record.turns))
    shown = (question_of(record.prompt_text), record.response_text, record.ground_truth or "")
    task = hashlib.sha256(record.prompt_text.encode("utf-8", "replace")).hexdigest()[:16]
    return (*head, *counts, *map(_preview, shown), storable(whole.casefold()), task)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _preview(text: str) -> str:
    return visible(" ".join(text[: 2 * _PREVIEW].split())[:_PREVIEW])


# The rollouts of the runs that somebody looks at.

_MOST = 4


class RolloutIndexes:
    """Rollout indexes by the key of the run; those of recently viewed runs are cached. Threads may call it at once."""

    def __init__(self, run_list: RunList):
        self._run_list = run_list
        self._lock = threading.Lock()
        self._known: dict[str, tuple[LiveRun, RolloutIndex]] = {}

    def known(self, key: str) -> RolloutIndex | None:
        """The index as of its last update; None if there is no such run."""
        known = self._known.get(key)
        return known[1] if known else self.updated(key)

    def output(self, key: str, number: int) -> Path | None:
        """The file with the output of the program that made a row; None where there is none."""
        live, index = self._known.get(key, (None, None))
        record = None if index is None else index.record(number)
        if live is None or record is None or "output" not in record.extra:
            return None
        folder = (live.files.output / "agents").resolve()
        path = (live.files.output / str(record.extra["output"])).resolve()
        return path if path.is_relative_to(folder) and path.is_file() else None

    def updated(self, key: str) -> RolloutIndex | None:
        """The index, updated now; None if there is no such run."""
        directory = self._run_list.directory(key)
        if directory is None:
            return None
        with self._lock:
            known = self._known.pop(key, None)
            try:
                live, index = known or (LiveRun(directory), RolloutIndex())
                live.update()
            except ConfigError:
                return None
            index.update(live.files)
            self._known[key] = live, index
            for old in list(self._known)[:-_MOST]:
                del self._known[old]
            return index
