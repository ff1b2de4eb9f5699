"""Interface of every buffer of experience, whatever it is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from roll.rl.experience.rows import Experience


@dataclass(frozen=True, order=True)
class Entry:
    """Facts about a group that are known without its rows, in the order in which groups are trained on."""

    step: int
    number: int
    is_kept: bool = True
    oldest_version: int = -1


class Buffer(ABC):
    """Groups between one process that writes and one that reads, either of which may be killed at any moment and start
    again. A group is there whole or not at all, under its number; a number that was written once is never written
    again, also when its rows are gone. Methods may be called from any thread."""

    # of the process that samples

    def recover(self) -> None:
        """Repairs the buffer once, before a writer continues after one that may have been killed during a `write`."""
        return

    @abstractmethod
    def write(self, experiences: Sequence[Experience]) -> None:
        """Returns when they are on the disk. A writer that is killed has written all of them or none, once the next one
        has recovered. Numbers that were written before are passed over."""

    @abstractmethod
    def finish(self, step: int, numbers: Collection[int]) -> None:
        """All groups of a step of the explorer are written. Steps are finished in order, from 0; once more does
        nothing."""

    @abstractmethod
    def finished(self) -> list[frozenset[int]]:
        """The numbers of each finished step, from 0 on."""

    # of the process that trains

    @abstractmethod
    def is_finished(self, step: int) -> bool: ...

    @abstractmethod
    def entries(self) -> list[Entry]:
        """The groups that were not released, in order."""

    @abstractmethod
    def read(self, entries: Sequence[Entry]) -> list[Experience]:
        """Their rows, in this order. Raises StorageError for a group that is damaged or gone."""

    @abstractmethod
    def release(self, trained: Mapping[int, int]) -> None:
        """These groups (number -> the step that trained on them last) are in a checkpoint that is whole: nobody asks
        for them again, and their rows may go."""

    @abstractmethod
    def rewind(self, steps_done: int, in_use: Collection[int] = ()) -> list[int]:
        """A run goes on where so many steps were done: what later ones have trained on is there again. Returns the
        numbers whose rows are gone, also of those `in_use`, which steps before trained on and later ones may train on
        again; then nothing has changed."""

    def close(self) -> None:
        """Gives connections back."""
        return
