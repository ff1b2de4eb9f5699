"""What is wrong with stages, said once each and with its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from roll.errors import ConfigError
from roll.run.stages.entries import STAGES, Entry


class Told:
    """Findings of several stages. What all of them have is the YAML's own, and said without a place.

    Example: "stages[2] (rl): rollout_batch_size: ..."
    """

    def __init__(self, num_stages: int):
        self._num_stages = num_stages
        self._found: dict[str, list[Entry]] = {}

    @contextmanager
    def about(self, entry: Entry) -> Iterator[None]:
        """Keeps what is raised inside as findings on this stage."""
        try:
            yield
        except ConfigError as error:
            self.add(entry, error.problems)

    def add(self, entry: Entry, texts: Iterable[str]) -> None:
        for text in dict.fromkeys(texts):
            self._found.setdefault(text, []).append(entry)

    @property
    def texts(self) -> list[str]:
        return [self._placed(text, entries) for text, entries in self._found.items()]

    def raise_if_any(self) -> None:
        if self._found:
            raise ConfigError(*self.texts)

    def _placed(self, text: str, entries: list[Entry]) -> str:
        if len(entries) == self._num_stages > 1:
            return text
        return f"{' and '.join(f'{STAGES}[{entry.number - 1}] ({entry.name})' for entry in entries)}: {text}"
