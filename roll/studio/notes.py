"""Notes of people in the studio: texts about runs, which runs are put away, and the columns of the table."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roll.utils.files import read_object, write_whole

logger = logging.getLogger(__name__)

NOTES_FILE = ".studio.json"


@dataclass
class Noted:
    """The file; runs by their keys. `columns`: None: the usual ones."""

    notes: dict[str, str]
    archived: list[str]
    columns: list[str] | None


class Notes:
    """The file in a folder, which several studios and people may write. One with anything else in it stays beside it
    as .studio.json.bad at the next change."""

    def __init__(self, folder: Path):
        self._path = folder / NOTES_FILE

    @property
    def noted(self) -> Noted:
        """The notes as they are in the file now, as far as it can be read."""
        return self._read()[0]

    def note(self, key: str, text: str) -> None:
        noted, is_whole = self._read()
        noted.notes.pop(key, None)
        noted.notes |= {key: text.strip()} if text.strip() else {}
        self._save(noted, is_whole)

    def archive(self, keys: Collection[str], is_archived: bool) -> None:
        noted, is_whole = self._read()
        kept = [key for key in noted.archived if key not in keys]
        noted.archived = [*kept, *keys] if is_archived else kept
        self._save(noted, is_whole)

    def choose(self, columns: list[str] | None) -> None:
        noted, is_whole = self._read()
        noted.columns = columns
        self._save(noted, is_whole)

    def _read(self) -> tuple[Noted, bool]:
        """The notes that can be read, and whether that is all of the file."""
        found: dict[str, Any] = {}
        is_whole = True
        try:
            found = read_object(self._path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError):
            is_whole = False
        notes = found.get("notes")
        texts = {key: text for key, text in notes.items() if isinstance(text, str)} if isinstance(notes, dict) else {}
        noted = Noted(texts, _texts(found.get("archived")), _texts(found.get("columns")) or None)
        return noted, is_whole and asdict(noted) | found == asdict(noted)

    def _save(self, noted: Noted, is_whole: bool) -> None:
        try:
            if not is_whole:
                self._path.replace(self._path.with_name(f"{NOTES_FILE}.bad"))
            write_whole(self._path, json.dumps(asdict(noted), indent=1) + "\n")
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._path, error.strerror)


def _texts(found: Any) -> list[str]:
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
