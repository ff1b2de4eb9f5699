"""The tasks of a run by number, from a stream that only goes forward."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from roll.types.rollout import Task

EVERY = 64  # draws between two places that are remembered: a resumed run draws fewer tasks than this in vain


class TaskSource(Protocol):
    """An endless, reproducible stream of tasks."""

    def next_tasks(self, count: int) -> Sequence[Task]: ...

    def state_dict(self) -> dict[str, Any]:
        """Position of the stream, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class NumberedTasks:
    """Task k of the stream, for numbers that rise; an older one again while it is kept."""

    def __init__(self, source: TaskSource):
        self._source = source
        self._next = 0
        self._places: dict[int, dict[str, Any]] = {}  # by number
        self._drawn: dict[int, Task] = {}

    def draw(self, number: int) -> Task:
        """Raises KeyError for a number that is neither the next one nor kept."""
        if number in self._drawn:
            return self._drawn[number]
        if number != self._next:
            raise KeyError(f"task {number} is not the next one, {self._next}")
        if not self._places or number % EVERY == 0:
            self._places[number] = self._source.state_dict()
        self._next += 1
        (self._drawn[number],) = self._source.next_tasks(1)
        return self._drawn[number]

    def keep_only(self, numbers: Collection[int]) -> None:
        self._drawn = {number: self._drawn[number] for number in numbers if number in self._drawn}

    def place(self, oldest: int) -> tuple[int, dict[str, Any]]:
        """(number, state of the source) from which the stream gives `oldest` and what follows."""
        if oldest == self._next:
            self._places = {}
            return oldest, self._source.state_dict()
        number = max(place for place in self._places if place <= oldest)
        self._places = {n: state for n, state in self._places.items() if n >= number}
        return number, self._places[number]

    def restore(self, place: int, numbers: Collection[int], upto: int) -> None:
        """The source stands at number `place`: goes on to `upto`, and keeps the tasks of `numbers`."""
        self._next, self._places, self._drawn = place, {}, {}
        while self._next < upto:
            number = self._next
            self.draw(number)
            if number not in numbers:
                del self._drawn[number]
