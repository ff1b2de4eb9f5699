"""Notes of people in the studio: texts, tags and names of runs, which are put away, how the table and the charts are
shown."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from roll.utils.files import read_object, write_whole

logger = logging.getLogger(__name__)

NOTES_FILE = ".studio.json"


@dataclass
class Noted:
    """The file; runs by their keys. `columns`: where none, the usual ones. `group`: the column whose values part the
    table. `pinned`: metrics whose charts come first."""

    notes: dict[str, str]
    tags: dict[str, str]
    names: dict[str, str]
    archived: list[str]
    columns: list[str]
    group: str
    pinned: list[str]


class Notes:
    """The file in a folder, which several studios and people may write. One with anything else in it stays beside it
    as .studio.json.bad at the next change."""

    def __init__(self, folder: Path):
        self._path = folder / NOTES_FILE

    @property
    def noted(self) -> Noted:
        """The notes as they are in the file now, as far as it can be read."""
        return self._read()[0]

    def write(self, what: str, key: str, text: str) -> None:
        """Keeps a text about a run among the `what`: notes, tags or names; an empty one takes it away."""
        noted, is_whole = self._read()
        texts: dict[str, str] = getattr(noted, what)
        texts.pop(key, None)
        texts |= {key: text.strip()} if text.strip() else {}
        self._save(noted, is_whole)

    def archive(self, keys: Collection[str], is_archived: bool) -> None:
        noted, is_whole = self._read()
        kept = [key for key in noted.archived if key not in keys]
        noted.archived = [*kept, *keys] if is_archived else kept
        self._save(noted, is_whole)

    def choose(self, **changes: Any) -> None:
        """Changes fields as a whole, such as the columns."""
        noted, is_whole = self._read()
        self._save(replace(noted, **changes), is_whole)

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
        notes, tags, names = (_texts_by_key(found.get(name)) for name in ("notes", "tags", "names"))
        archived, columns, pinned = (_texts(found.get(name)) for name in ("archived", "columns", "pinned"))
        noted = Noted(notes, tags, names, archived, columns, str(found.get("group") or ""), pinned)
        return noted, is_whole and asdict(noted) | found == asdict(noted)

    def _save(self, noted: Noted, is_whole: bool) -> None:
        try:
            if not is_whole:
                self._path.replace(self._path.with_name(f"{NOTES_FILE}.bad"))
            write_whole(self._path, json.dumps(asdict(noted), indent=1) + "\n")
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._path, error.strerror)


def _texts_by_key(found: Any) -> dict[str, str]:
    pairs = found.items() if isinstance(found, dict) else ()
    return {key: text for key, text in pairs if isinstance(text, str)}


def _texts(found: Any) -> list[str]:
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
