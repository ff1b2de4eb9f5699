"""Names of columns in public data sets: which keys a row of a usual shape needs, and what of it nobody reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from roll.datasets.loader import Row
from roll.datasets.messages import CONVERSATIONS, are_messages

USUAL_COLUMNS = (
    ("prompt", "completion"), ("prompt", "response"), ("instruction", "output"), ("instruction", "response"),
    ("input", "output"), ("question", "response"), ("query", "response"), ("problem", "generated_solution"),
    ("problem", "solution"), ("question", "solution"), ("question", "answer"), ("query", "answer"),
    ("prompt", "answer"), ("inputs", "targets"),
)  # fmt: skip
"""Names of prompts and responses; a whole solution before its last line."""
_PROMPTS = (
    "prompt", "problem", "question", "query", "instruction", "inputs", "input", "input.messages", "question.problem",
)  # fmt: skip
_TRUTHS = (
    "answer", "final_answer", "expected_answer", "reward_model.ground_truth", "question.ground_truth_answer",
    "golden_answers", "solution", "test_cases",
)  # fmt: skip
_IS_SYSTEM = ("system", "system_prompt")
_FORGOTTEN = {
    "input": "query_key", "context": "query_key", "system": "system_key", "system_prompt": "system_key",
    "history": None, "chat_template_kwargs": None,
}  # fmt: skip
"""Columns that hold a part of what is asked, and the keys that name them."""


def conversation_hint(row: Row, prompt: str, response: str) -> str:
    """Suggest keys for a row of a usual shape, if the columns that the keys name now are missing. Those that are there
    stay."""
    there = (row.value(prompt) is not None, row.value(response) is not None)
    if all(there):
        return ""
    fits = [pair for pair in USUAL_COLUMNS if all(row.value(column) is not None for column in pair)]
    kept = [pair for pair in fits if pair[0] == prompt] if there[0] else []
    kept = kept or ([pair for pair in fits if pair[1] == response] if there[1] else [])
    if not (found := kept or fits):
        return ""
    talk = next((name for name in CONVERSATIONS if row.values.get(name)), None)
    whole = "" if talk is None else f", or messages: {talk} for whole conversations"
    return f" (here prompt_key: {found[0][0]} and response_key: {found[0][1]}{whole})"


def prompt_hint(row: Row, key: str) -> str:
    """Suggest a value of `key` for a row without its prompt."""
    names = (*_PROMPTS, *CONVERSATIONS)
    there = [name for name in names if isinstance(value := row.value(name), str) or are_messages(value)]
    return _hint(row, key, there)


def truth_hint(row: Row, key: str) -> str:
    """Suggest a value of `key` for a row without its ground truth."""
    return _hint(row, key, _TRUTHS)


def _hint(row: Row, key: str, names: Sequence[str]) -> str:
    return next((f" (here {key}: {name})" for name in names if row.value(name) not in (None, "")), "")


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
