"""Questions out of a data file, one per episode."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from roll.datasets.hub_set import load_hub_set
from roll.datasets.loader import ENDINGS, DataFile, Row
from roll.datasets.media import check_text_alone
from roll.datasets.messages import are_messages, messages_in
from roll.datasets.sources import is_data_set_id
from roll.errors import ConfigError, EnvError
from roll.utils.files import look_at

Mode = Literal["train", "val"]


@functools.lru_cache(maxsize=16)
def load_rows(name: str, split: str = "train", subset: str | None = None) -> Sequence[Mapping[str, Any]]:
    """The rows of a file, or of a data set of the Hugging Face hub; read once per process. Raises EnvError."""
    look = look_at(name)
    if look.is_file:
        return _rows_of_file(name)
    if not is_data_set_id(name) or look.path.suffix.lower() in ENDINGS:
        raise EnvError(
            f"{name} does not exist: name a {', '.join(ENDINGS)} file, or a data set of the Hugging Face hub"
        )
    try:
        return load_hub_set(name, subset, split)
    except ConfigError as error:
        raise EnvError(str(error)) from error


def _rows_of_file(name: str) -> Sequence[Mapping[str, Any]]:
    path = look_at(name).path
    if (format := ENDINGS.get(path.suffix.lower())) is None:
        raise EnvError(f"{name} does not end in {', '.join(ENDINGS)}")
    try:
        rows = list(DataFile(path, format, "the file").rows())
    except ConfigError as error:
        raise EnvError(str(error)) from error
    for row in rows:
        if row.fault:
            raise EnvError(f"{row.where}: {row.fault}")
    if not rows:
        raise EnvError(f"{name} has no rows")
    return [dict(row.values) for row in rows]


class Questions:
    """The questions of a data set. `mode` train draws one by the seed; val takes them in turn, so that seeds one after
    the other ask each of them once."""

    def __init__(
        self,
        dataset_name: str,
        split: str,
        question_key: str,
        answer_key: str,
        mode: Mode,
        seed: int,
        owner: str,
        subset: str | None = None,
    ):
        if mode not in ("train", "val"):
            raise EnvError(f"mode is {mode!r}, not train or val")
        self._name, self._keys = dataset_name, (question_key, answer_key)
        self._file = (dataset_name, split, subset)
        self._mode, self._seed, self._owner = mode, seed, owner
        self._row(0)

    def draw(self, env_seed: int) -> tuple[str, Any]:
        """(question, answer)."""
        count = len(load_rows(*self._file))
        if self._mode == "val":
            return self._row(env_seed % count)
        return self._row(random.Random(f"{self._owner} {self._seed} {env_seed}").randrange(count))

    def _row(self, place: int) -> tuple[str, Any]:
        """Raises EnvError that names a column which is not there."""
        row = Row(self._name, place, load_rows(*self._file)[place])
        for what, key in zip(("question_key", "answer_key"), self._keys, strict=True):
            value = row.value(key)
            if value is None or (isinstance(value, str) and not value):
                raise EnvError(f"{what}: row {place} of {self._name} has no {key}; it has {', '.join(row.values)}")
        question, answer = map(row.value, self._keys)
        return _question(row, self._keys[0], question), answer


def _question(row: Row, key: str, value: Any) -> str:
    """A text, or what a conversation of one message says, behind its system message. Raises EnvError for others, and
    for pictures."""
    try:
        check_text_alone(row)
        if are_messages(value):
            messages = messages_in(value, row, key, "question_key")
            before = messages[:-1] if messages[0]["role"] == "system" and len(messages) == 2 else []
            if len(messages) > 1 + len(before):
                raise ConfigError(
                    f"{row.where}: question_key: {key} holds {len(messages)} messages; it may hold one question, and a "
                    "system message before it"
                )
            return "\n\n".join(str(message["content"]) for message in messages)
    except ConfigError as error:
        raise EnvError(str(error)) from error
    if isinstance(value, Mapping | list | tuple):
        raise EnvError(f"{row.where}: question_key: {key} holds a {type(value).__name__}, but a question is a text")
    return str(value)
