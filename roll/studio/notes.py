"""Notes of people in the studio: texts about runs, which runs are put away, and the columns of the table."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from pydantic import BaseModel, ValidationError

from roll.utils.files import read_object, write_whole

logger = logging.getLogger(__name__)

NOTES_FILE = ".studio.json"


class Noted(BaseModel):
    """The file; runs by their keys. `columns`: None: the usual ones."""

    notes: dict[str, str] = {}
    archived: list[str] = []
    columns: list[str] | None = None


class Notes:
    """The file in a folder, read once and written at every change."""

    def __init__(self, folder: Path):
        self._path = folder / NOTES_FILE
        try:
            self.noted = Noted.model_validate(read_object(self._path))
        except (OSError, ValueError, ValidationError):  # none yet, or no longer one
            self.noted = Noted()

    def save(self) -> None:
        try:
            write_whole(self._path, json.dumps(self.noted.model_dump(), indent=1) + "\n")
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._path, error.strerror)

    def note(self, key: str, text: str) -> None:
        self.noted.notes.pop(key, None)
        self.noted.notes |= {key: text.strip()} if text.strip() else {}
        self.save()

    def archive(self, keys: list[str], is_archived: bool) -> None:
        kept = [key for key in self.noted.archived if key not in keys]
        self.noted.archived = [*kept, *keys] if is_archived else kept
        self.save()
