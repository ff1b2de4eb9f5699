"""The buffer of experience: a directory with a file for each group, each finished step and each release."""

import json
import os
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from roll.errors import StorageError, describe
from roll.features.experience.rows import ENDING, Experience, pack, unpack
from roll.run.saving.manifest import flush_to_disk
from roll.utils.files import read_object

T = TypeVar("T")

_NAME = re.compile(r"(\d+)-(\d+)-(kept|dropped)-v(-?\d+)\.\w+")
_STEP = re.compile(r"(\d+)\.json")


@dataclass(frozen=True, order=True)
class Entry:
    """Facts about a group that are known without its rows, in the order in which groups are trained on."""

    step: int
    number: int
    is_kept: bool = True
    oldest_version: int = -1


class DirectoryBuffer:
    """Groups between one process that writes and one that reads, either of which may be killed at any moment and start
    again. A group is there whole or not at all, under its number; a number that was written once is never written
    again, also when its rows are gone. Methods may be called from any thread.

    `groups/000012-000000096-kept-v12.npz`: of step 12, number 96, sampled by version 12 and later ones.
    `steps/000012.json`: the numbers of a finished step. `trained/000013.json`: what was released when 13 steps were
    done. Everything is written aside, flushed and renamed; a journal makes one of several files at once."""

    def __init__(self, directory: Path, keep: bool = False):
        """`keep`: released groups stay as files."""
        self._keep = keep
        self._groups, self._steps, self._trained = (directory / name for name in ("groups", "steps", "trained"))
        self._journal = directory / "writing.json"
        self._lock = threading.Lock()
        self._written: set[int] | None = None
        self._known: dict[int, dict[int, int]] | None = None  # what _noted has read
        try:
            for path in (self._groups, self._steps, self._trained):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"experience.dir: {directory} cannot be written: {error.strerror}") from error

    def write(self, experiences: Sequence[Experience]) -> None:
        """Returns when they are on the disk. A writer that is killed has written all of them or none, once the next one
        has recovered. Numbers that were written before are passed over."""
        with self._lock:
            if self._written is None:
                self._written = {entry.number for entry in self._listed()}.union(self._released(), *self.finished())
            new = {one.number: one for one in experiences if one.number not in self._written}
            names = [self._name(one) for one in new.values()]
            for name, one in zip(names, new.values(), strict=True):
                self._stage(self._groups / name, pack(one))
            if len(names) > 1:
                self._put(self._journal, json.dumps({"names": names}).encode())
            self._show(names)
            self._written |= new.keys()

    def recover(self) -> None:
        """Repairs the buffer once, before a writer continues after one that may have been killed during a `write`."""
        with self._lock:
            if self._journal.exists():
                self._show(_noted_in(self._journal, "names", list))
            for path in self._groups.glob(".*.unfinished"):
                path.unlink()

    def _show(self, names: Sequence[str]) -> None:
        """Rename staged files to their final names, one by one; the journal makes sure that all of them appear."""
        for name in names:
            if (staged := _aside(self._groups / name)).exists():
                self._rename(staged, self._groups / name)
        flush_to_disk(self._groups)
        self._journal.unlink(missing_ok=True)

    def finish(self, step: int, numbers: Collection[int]) -> None:
        """Notes that all groups of a step of the explorer are written. Steps are finished in order, from 0; once more
        does nothing."""
        path = self._steps / f"{step:06d}.json"
        if not path.exists():
            self._put(path, json.dumps({"numbers": sorted(numbers)}).encode())

    def finished(self) -> list[frozenset[int]]:
        """The numbers of each finished step, from 0 on."""
        steps: list[frozenset[int]] = []
        while _is_there(path := self._steps / f"{len(steps):06d}.json"):
            steps.append(frozenset(_noted_in(path, "numbers", list)))
        return steps

    def is_finished(self, step: int) -> bool:
        return _is_there(self._steps / f"{step:06d}.json")

    def entries(self) -> list[Entry]:
        """Returns the groups that were not released, in order."""
        released = self._released()
        return sorted(entry for entry in self._listed() if entry.number not in released)

    def read(self, entries: Sequence[Entry]) -> list[Experience]:
        """Returns their rows, in this order. Raises StorageError for a group that is damaged or gone."""
        paths = {entry.number: path for path, entry in self._files()}
        return [self._read(entry.number, paths.get(entry.number)) for entry in entries]

    def release(self, trained: Mapping[int, int]) -> None:
        """Takes note of groups (number -> the step that trained on them last) that are in a checkpoint that is whole:
        nobody asks for them again, and their files go unless they are kept. The note is written first, so a file that
        is left over counts no more."""
        if not trained:
            return
        last = max(trained.values()) + 1
        known = self._noted().get(last, {})
        self._note(last, {**known, **trained})
        if not self._keep:
            for path, entry in self._files():
                if entry.number in trained:
                    path.unlink(missing_ok=True)

    def rewind(self, steps_done: int, in_use: Collection[int] = ()) -> list[int]:
        """Goes back to where so many steps were done: what later ones have trained on is there again. Returns the
        numbers whose rows are gone, also of those `in_use`, which steps before trained on and later ones may train on
        again; then nothing has changed."""
        noted, there = self._noted(), {entry.number for entry in self._listed()}
        undone = {number for known in noted.values() for number, step in known.items() if step >= steps_done}
        if gone := sorted(undone.union(in_use) - there):
            return gone
        for last, known in list(noted.items()):
            if remaining := {number: step for number, step in known.items() if number not in undone}:
                if remaining != known:
                    self._note(last, remaining)
            else:
                (self._trained / f"{last:06d}.json").unlink(missing_ok=True)
                del noted[last]
        return []

    def _name(self, experience: Experience) -> str:
        kind = "kept" if experience.is_kept else "dropped"
        place = f"{experience.step:06d}-{experience.number:09d}"
        return f"{place}-{kind}-v{experience.oldest_version}.{ENDING}"

    def _files(self) -> list[tuple[Path, Entry]]:
        entries = []
        for name in _names_in(self._groups):
            if match := _NAME.fullmatch(name):
                step, number, version = int(match[1]), int(match[2]), int(match[4])
                entries.append((self._groups / name, Entry(step, number, match[3] == "kept", version)))
        return entries

    def _listed(self) -> list[Entry]:
        return [entry for _, entry in self._files()]

    def _read(self, number: int, path: Path | None) -> Experience:
        if path is None:
            raise StorageError(f"group {number} is gone from {self._groups}: another process has removed it")
        try:
            return unpack(path.read_bytes())
        except Exception as error:  # whatever a damaged file makes of it
            raise StorageError(f"{path} cannot be read: {describe(error)}") from error

    def _released(self) -> set[int]:
        return {number for known in self._noted().values() for number in known}

    def _noted(self) -> dict[int, dict[int, int]]:
        """Steps that are done: number -> {group: step that trained on it}. Nobody else writes them."""
        if self._known is None:
            known: dict[int, dict[int, int]] = {}
            for name in sorted(_names_in(self._trained)):
                if match := _STEP.fullmatch(name):
                    noted = _noted_in(self._trained / name, "groups", dict)
                    known[int(match[1])] = {int(number): step for number, step in noted.items()}
            self._known = known
        return self._known

    def _note(self, steps_done: int, groups: Mapping[int, int]) -> None:
        self._noted()[steps_done] = dict(groups)
        note = {"groups": {str(number): step for number, step in sorted(groups.items())}}
        self._put(self._trained / f"{steps_done:06d}.json", json.dumps(note).encode())

    def _put(self, path: Path, content: bytes) -> None:
        self._stage(path, content)
        self._rename(_aside(path), path)
        flush_to_disk(path.parent)

    def _stage(self, path: Path, content: bytes) -> None:
        try:
            with _aside(path).open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise StorageError(f"experience.dir: {path} cannot be written: {error.strerror or error}") from error

    def _rename(self, staged: Path, path: Path) -> None:
        os.replace(staged, path)


def _is_there(path: Path) -> bool:
    """Raises StorageError where somebody has removed its directory."""
    if path.exists():
        return True
    if not path.parent.is_dir():
        raise StorageError(f"experience.dir: {path.parent} cannot be read: there is no such directory")
    return False


def _names_in(directory: Path) -> list[str]:
    """Raises StorageError for a directory that somebody has removed."""
    try:
        return os.listdir(directory)
    except OSError as error:
        raise StorageError(f"experience.dir: {directory} cannot be read: {error.strerror}") from error


def _noted_in(path: Path, key: str, kind: type[T]) -> T:
    """Raises StorageError for a note that somebody has damaged."""
    try:
        value = read_object(path).get(key)
    except (OSError, ValueError) as error:
        raise StorageError(f"experience.dir: {path} cannot be read: {error}") from error
    if not isinstance(value, kind):
        raise StorageError(f"experience.dir: {path} cannot be read: it has no {key}")
    return value


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")
