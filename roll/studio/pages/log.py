"""The logs of a run: what the driver wrote, its workers, and the programs of agents; the last lines, as they come."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from nicegui import ui

from roll.report.run_files import LOG_LINE, RunFiles
from roll.utils.files import open_regular
from roll.utils.text import visible

ALL_LEVELS = "DIWEC"
_LEVELS = {"all levels": ALL_LEVELS, "from info": "IWEC", "warnings and errors": "WEC", "errors": "EC"}
_TAIL_BYTES = 1_000_000
_MOST_LINES = 500
_MOST_FILES = 200


def log_files(run: RunFiles) -> dict[str, Path]:
    """The logs that there are, by a name to choose: the driver's first."""
    found = [*run.logs.glob("*.log"), *sorted((run.logs / "workers").glob("*")), run.output / "console.log"]
    found += sorted((run.output / "agents").glob("*/*/*.log"))  # TAG/PURPOSE/EPISODE.log
    ordered = sorted(dict.fromkeys(found), key=lambda path: path != run.log)[:_MOST_FILES]
    places = run.output.resolve(), run.logs.resolve()
    inside = (path for path in ordered if any(path.resolve().is_relative_to(place) for place in places))  # no link out
    names = ((path.relative_to(run.output) if path.is_relative_to(run.output) else path, path) for path in inside)
    return {str(name): path for name, path in names if path.is_file()}


def last_lines(path: Path, levels: str, words: str = "") -> list[str]:
    """The last lines of the records of these levels (letters) that have the words; lines of no record count as the
    record before them, and those before the first one always."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return []
    return list(_chosen(lines, levels, words.casefold()))[-_MOST_LINES:]


def _chosen(lines: list[str], levels: str, words: str) -> Iterator[str]:
    is_of_level, is_shown = True, words == ""
    for line in lines:
        has_words = words in line.casefold()
        if match := LOG_LINE.match(line):
            is_of_level = match[2] in levels
            is_shown = is_of_level and has_words
        if line and (is_shown or (is_of_level and has_words)):
            yield line


class LogPanel:
    """A log with what chooses its lines. `refresh` reads it while somebody looks."""

    def __init__(self) -> None:
        with ui.row().classes("items-center full-width").style("gap: 10px"):
            self._file = ui.select([], label="log").style("min-width: 240px")
            self._level = ui.select(list(_LEVELS), value="from info", label="level").style("width: 180px")
            self._search = ui.input("search").props("clearable debounce=300")
            for field in (self._file, self._level, self._search):
                field.props("dense outlined options-dense")
            self._follows = ui.switch("follow", value=True).props("dense")
        self._area = ui.scroll_area().classes("full-width card").style("height: calc(100vh - 300px)")
        with self._area:
            self._text = ui.label().classes("mono text full-width")

    async def refresh(self, run: RunFiles) -> None:
        files = await asyncio.to_thread(log_files, run)
        if list(files) != self._file.options:
            self._file.set_options(list(files), value=self._file.value or next(iter(files), None))
        path = files.get(str(self._file.value))
        if path is None:
            self._text.set_text("The run has written no log.")
            return
        words = self._search.value or ""
        lines = await asyncio.to_thread(last_lines, path, _LEVELS[str(self._level.value)], words)
        text = visible("\n".join(lines)) or "No such line."
        if text != self._text.text:
            self._text.set_text(text)
            if self._follows.value:
                with self._area:  # once the browser has laid it out
                    ui.timer(0.1, lambda: self._area.scroll_to(percent=1.0), once=True)
