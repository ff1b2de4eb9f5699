"""A buffer in a database: SQLite by itself, others by way of SQLAlchemy."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from roll.errors import StorageError, describe
from roll.rl.experience.buffer import Buffer, Entry
from roll.rl.experience.rows import Experience, Form

Values = Mapping[str, Any]
Execute = Any
"""`execute(statement, values)`: the rows of a query, nothing of another statement. Values are named as `:name`."""

_GROUPS = "roll_groups"
_STEPS = "roll_steps"
_COLUMNS = "step, number, is_kept, oldest_version"
_BUSY_S = 60.0


class Database(Protocol):
    blob: str  # the type of a column of bytes

    def transaction(self) -> AbstractContextManager[Execute]:
        """All of it happens, or nothing; on the disk when it ends."""
        ...

    def close(self) -> None: ...


class SqliteDatabase:
    """A file, in WAL mode: one process writes while another reads. Not for file systems of a network, which WAL does
    not work on."""

    blob = "BLOB"

    def __init__(self, path: Path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._path, self._inode = path, path.stat().st_ino
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"experience: the database {path} cannot be opened: {error}") from error
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        with self._lock:
            self._check_file()
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield lambda statement, values=(): self._connection.execute(statement, values).fetchall()
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # else it has ended it itself: the disk is full
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        self._connection.close()

    def _check_file(self) -> None:
        """An open file that somebody has removed would be written on, and nobody else could read it."""
        try:
            is_there = self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise StorageError(
                f"experience: the database {self._path} is gone: another process has removed or replaced it"
            )


class AlchemyDatabase:
    """Any database that SQLAlchemy knows."""

    def __init__(self, url: str):
        import sqlalchemy  # type: ignore[import-not-found]

        self._text = sqlalchemy.text
        self._engine = sqlalchemy.create_engine(url)
        self.blob = "BYTEA" if self._engine.dialect.name == "postgresql" else "BLOB"

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        with self._engine.begin() as connection:

            def execute(statement: str, values: Values | None = None) -> list[Any]:
                result = connection.execute(self._text(statement), dict(values or {}))
                return list(result.fetchall()) if result.returns_rows else []

            yield execute

    def close(self) -> None:
        self._engine.dispose()


class SqlBuffer(Buffer):
    """Two tables: `roll_groups`, a row for each group with its content, and `roll_steps`, a row for each finished step.
    The content of a released group becomes null."""

    def __init__(self, database: Database, form: Form, keep: bool = False):
        self._database, self._form, self._keep = database, form, keep
        with self._transaction() as execute:
            execute(
                f"CREATE TABLE IF NOT EXISTS {_GROUPS} (number BIGINT PRIMARY KEY, step BIGINT NOT NULL, "
                f"is_kept INTEGER NOT NULL, oldest_version BIGINT NOT NULL, trained_in BIGINT, content {database.blob})"
            )
            execute(f"CREATE TABLE IF NOT EXISTS {_STEPS} (step BIGINT PRIMARY KEY)")

    def write(self, experiences: Sequence[Experience]) -> None:
        with self._transaction() as execute:
            for one in experiences:
                if execute(f"SELECT 1 FROM {_GROUPS} WHERE number = :number", {"number": one.number}):
                    continue
                execute(
                    f"INSERT INTO {_GROUPS} (number, step, is_kept, oldest_version, content) "
                    "VALUES (:number, :step, :is_kept, :oldest_version, :content)",
                    {
                        "number": one.number,
                        "step": one.step,
                        "is_kept": int(one.is_kept),
                        "oldest_version": one.oldest_version,
                        "content": self._form.pack(one),
                    },
                )

    def finish(self, step: int, numbers: Collection[int]) -> None:
        """Their rows say of which step they are."""
        with self._transaction() as execute:
            if not execute(f"SELECT 1 FROM {_STEPS} WHERE step = :step", {"step": step}):
                execute(f"INSERT INTO {_STEPS} (step) VALUES (:step)", {"step": step})

    def finished(self) -> list[frozenset[int]]:
        with self._transaction() as execute:
            (row,) = execute(f"SELECT COUNT(*) FROM {_STEPS}")
            rows = execute(f"SELECT step, number FROM {_GROUPS} WHERE step < :count", {"count": row[0]})
        by_step: dict[int, list[int]] = {step: [] for step in range(row[0])}
        for step, number in rows:
            by_step[step].append(number)
        return [frozenset(numbers) for numbers in by_step.values()]

    def is_finished(self, step: int) -> bool:
        with self._transaction() as execute:
            return bool(execute(f"SELECT 1 FROM {_STEPS} WHERE step = :step", {"step": step}))

    def entries(self) -> list[Entry]:
        with self._transaction() as execute:
            rows = execute(f"SELECT {_COLUMNS} FROM {_GROUPS} WHERE trained_in IS NULL ORDER BY step, number")
        return [Entry(step, number, bool(is_kept), oldest) for step, number, is_kept, oldest in rows]

    def read(self, entries: Sequence[Entry]) -> list[Experience]:
        with self._transaction() as execute:
            return [self._read(execute, entry.number) for entry in entries]

    def release(self, trained: Mapping[int, int]) -> None:
        content = "" if self._keep else ", content = NULL"
        with self._transaction() as execute:
            for number, step in trained.items():
                values = {"number": number, "step": step}
                execute(f"UPDATE {_GROUPS} SET trained_in = :step{content} WHERE number = :number", values)

    def rewind(self, steps_done: int, in_use: Collection[int] = ()) -> list[int]:
        with self._transaction() as execute:
            rows = execute(f"SELECT number, trained_in FROM {_GROUPS} WHERE content IS NULL ORDER BY number")
            gone = [number for number, step in rows if step >= steps_done or number in in_use]
            if not gone:
                values = {"steps_done": steps_done}
                execute(f"UPDATE {_GROUPS} SET trained_in = NULL WHERE trained_in >= :steps_done", values)
        return gone

    def close(self) -> None:
        self._database.close()

    def _read(self, execute: Execute, number: int) -> Experience:
        rows = execute(f"SELECT content FROM {_GROUPS} WHERE number = :number", {"number": number})
        if not rows or rows[0][0] is None:
            raise StorageError(f"group {number} is gone from the table {_GROUPS}: another process has removed it")
        try:
            return self._form.unpack(bytes(rows[0][0]))
        except Exception as error:  # whatever damaged content makes of it
            raise StorageError(f"group {number} in the table {_GROUPS} cannot be read: {describe(error)}") from error

    @contextmanager
    def _transaction(self) -> Iterator[Execute]:
        """Raises StorageError for what the database refuses."""
        try:
            with self._database.transaction() as execute:
                yield execute
        except (StorageError, AssertionError):
            raise
        except Exception as error:
            raise StorageError(f"experience: the database says {type(error).__name__}: {error}") from error
