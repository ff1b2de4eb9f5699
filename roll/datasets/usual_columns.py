"""Columns of public data sets that hold a part of what is asked, and that nothing reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from roll.datasets.loader import Row

_IS_SYSTEM = ("system", "system_prompt")
_FORGOTTEN = {
    "input": "query_key", "context": "query_key", "system": "system_key", "system_prompt": "system_key",
    "history": None, "chat_template_kwargs": None,
}  # fmt: skip
"""Columns that hold a part of what is asked, and the keys that name them."""


class Forgotten:
    """Count rows with columns that hold a part of what is asked in most data sets, and that nothing reads."""

    def __init__(self, names: Sequence[str] = tuple(_FORGOTTEN)):
        self._names, self._counts = names, Counter[str]()

    @classmethod
    def of_prompts(cls) -> Forgotten:
        """Return a count for rows whose other columns are read by rewards."""
        return cls((*_IS_SYSTEM, "history", "chat_template_kwargs"))

    def add(self, row: Row, read: Sequence[str | None], has_system: bool) -> None:
        """Count a row of which the columns `read` are read. With a system prompt of its own it needs no other."""
        for name in self._names:
            is_there = row.values.get(name) not in (None, "", [], {})
            if is_there and name not in read and not (has_system and name in _IS_SYSTEM):
                self._counts[name] += 1

    def warnings(self, keys: bool = True) -> Iterator[str]:
        """Yield a sentence for each column. With `keys` a key may name it."""
        for name, count in self._counts.items():
            key = _FORGOTTEN[name] if keys else None
            way = f"Set {key}: {name}" if key else "Write it into the messages"
            yield f"{count} rows have a column {name!r} that nothing reads. {way} if it is part of the prompt"
