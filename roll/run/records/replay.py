"""Recorded sample rollouts, read back from a run's files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError, model_validator

from roll.types.texts import BESIDE
from roll.utils.files import open_regular


class RecordedPicture(BaseModel):
    """A picture of a prompt or a turn, by where it came from; `place` is empty where it was part of its row. A form
    `beside` is a file in the folder of the record."""

    form: str
    place: str
    where: str

    def in_folder(self, folder: Path) -> Self:
        """The same with a place of its own, where the record lies in this folder."""
        if self.form != BESIDE:
            return self
        return self.model_copy(update={"form": "file", "place": str(folder / Path(self.place).name)})


class RecordedMessage(BaseModel):
    role: str
    text: str
    thinking: str = ""
    calls: list[tuple[str, str]] = []


class RecordedTurn(BaseModel):
    """A turn of an episode. `said`: its messages, the policy's last, where their roles are known."""

    observation: str
    response: str
    action: str | None
    reward: float
    metrics: dict[str, float | None]
    pictures: list[RecordedPicture] = []
    said: list[RecordedMessage] = []


class RecordedTokens(BaseModel):
    """The first sampled tokens of an attempt, with the log-prob of each by engine and trainer."""

    texts: list[str]
    engine: list[float | None]
    trainer: list[float | None]

    @model_validator(mode="after")
    def _are_of_the_same_tokens(self) -> Self:
        if not len(self.texts) == len(self.engine) == len(self.trainer):
            raise ValueError("texts, engine and trainer are of different lengths")
        return self


class Recorded(BaseModel):
    """A line of the file: what RolloutRecord holds, and its step."""

    step: int
    domain: str
    group_id: str | int
    prompt_text: str
    response_text: str
    reward: float | None
    advantage: float | None = None
    finish_reason: str
    ground_truth: str | None = None
    extra: dict[str, Any] = {}
    turns: list[RecordedTurn] = []
    response_tokens: int = 0
    tokens: RecordedTokens | None = None
    pictures: list[RecordedPicture] = []


def read(file: Path) -> Iterator[Recorded]:
    """The records of a file. Raises ValueError for what is none, with the line."""
    with open_regular(file) as stream:
        lines = stream.read().decode("utf-8").split("\n")
    if not any(lines):
        raise ValueError("it is empty")
    for number, line in enumerate(lines, 1):
        if not line and number == len(lines):
            return
        yield parse(line, number, file.parent)


def parse(line: str, number: int, folder: Path) -> Recorded:
    """A line of a file in this folder. Raises ValueError for what is no record."""
    try:
        record = Recorded.model_validate(json.loads(line))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the line"
        raise ValueError(f"line {number} is not a record of a rollout: {where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number} is not JSON: {error}") from None
    for turn in record.turns:
        turn.pictures = [picture.in_folder(folder) for picture in turn.pictures]
    return record
