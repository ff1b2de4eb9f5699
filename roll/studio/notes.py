"""Notes of people in the studio: texts, tags and names of runs, which are put away, how the table and the charts are
shown."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from roll.utils.files import read_object, write_whole

logger = logging.getLogger(__name__)

NOTES_FILE = ".studio.json"


class Noted(BaseModel):
    """The file; runs by their keys. `columns`: where none, the usual ones. `group`: the column whose values part the
    table. `pinned`: metrics whose charts come first."""

    notes: dict[str, str] = {}
    tags: dict[str, str] = {}
    names: dict[str, str] = {}
    archived: list[str] = []
    columns: list[str] = []
    group: str = ""
    pinned: list[str] = []


class Notes:
    """The file in a folder, which several studios and people may write."""

    def __init__(self, folder: Path):
        self._path = folder / NOTES_FILE

    @property
    def noted(self) -> Noted:
        """The notes as they are in the file now; none where it cannot be read."""
        try:
            return self._read()
        except (OSError, ValueError):
            return Noted()

    def write(self, what: str, key: str, text: str) -> None:
        """Keeps a text about a run among the `what`: notes, tags or names; an empty one takes it away."""

        def change(noted: Noted) -> dict[str, Any]:
            others = {each: kept for each, kept in getattr(noted, what).items() if each != key}
            return {what: others | ({key: text.strip()} if text.strip() else {})}

        self._change(change)

    def archive(self, keys: Collection[str], is_archived: bool) -> None:
        def change(noted: Noted) -> dict[str, Any]:
            kept = [key for key in noted.archived if key not in keys]
            return {"archived": [*kept, *keys] if is_archived else kept}

        self._change(change)

    def choose(self, **changes: Any) -> None:
        """Changes fields as a whole, such as the columns."""
        self._change(lambda _: changes)

    def _read(self) -> Noted:
        try:
            return Noted.model_validate(read_object(self._path))
        except FileNotFoundError:
            return Noted()

    def _change(self, change: Callable[[Noted], dict[str, Any]]) -> None:
        """Writes other values of fields. A file that cannot be read stays as it is, one that holds anything but notes
        is set aside as .studio.json.bad."""
        try:
            try:
                noted = self._read()
            except ValueError:
                noted = Noted()
                self._path.replace(self._path.with_name(f"{NOTES_FILE}.bad"))
            write_whole(self._path, noted.model_copy(update=change(noted)).model_dump_json(indent=1) + "\n")
        except OSError as error:
            logger.warning("%s cannot be changed: %s", self._path, error.strerror)
