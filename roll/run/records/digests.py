"""Digests of what each step trained on, in `digests.jsonl` beside the metrics, for `roll bisect`."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from roll.types.row_numbers import ROW_STAGES
from roll.utils.files import write_whole

logger = logging.getLogger(__name__)

DIGESTS_FILE = "digests.jsonl"
ORDER, PROMPTS = "data order", ROW_STAGES[0]


class StepDigests(BaseModel):
    """A line. `digests` by stage; `means` over the rows, of stages that are no token ids."""

    model_config = ConfigDict(frozen=True)

    step: int
    digests: dict[str, str]
    means: dict[str, float | None]


class Digests:
    """Writes a line per step. A disk that fails ends the digests, not the run."""

    def __init__(self, directory: Path):
        self._path = directory / DIGESTS_FILE
        self._begun = self._failed = False

    def record(self, step: int, numbers: np.ndarray) -> None:
        """`step`: steps done with this one. `numbers`: those of the step's rows, in their order, as `row_numbers`
        gives them. Lines that an earlier run left of this step and later ones go."""
        if self._failed:
            return
        line = digests_of(step, numbers).model_dump_json() + "\n"
        try:
            if not self._begun:
                before = [
                    each.model_dump_json() + "\n" for each in read_digests(self._path).values() if each.step < step
                ]
                write_whole(self._path, "".join(before))
                self._begun = True
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            self._failed = True
            logger.warning("%s is no longer written; the run continues: %s", self._path, error)


def digests_of(step: int, numbers: np.ndarray) -> StepDigests:
    """Prompts count as a set here, since `data order` tells their order."""
    columns = dict(zip(ROW_STAGES, numbers.T, strict=False))
    columns = {name: column for name, column in columns.items() if column.any() or not name.startswith("log-probs")}
    ordered = {ORDER: columns[PROMPTS], **columns, PROMPTS: np.sort(columns[PROMPTS])}
    means = {name: float(np.nanmean(column)) if len(column) else None for name, column in list(columns.items())[2:]}
    return StepDigests(step=step, digests={name: _digest(column) for name, column in ordered.items()}, means=means)


def read_digests(path: Path) -> dict[int, StepDigests]:
    """The lines by step; of a killed run without its last, unfinished one."""
    if not path.exists():
        return {}
    lines: dict[int, StepDigests] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = StepDigests.model_validate_json(text)
        except ValueError:
            continue
        lines[line.step] = line
    return lines


def _digest(column: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(column).tobytes(), digest_size=8).hexdigest()
