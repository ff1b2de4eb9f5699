"""`/report/KEY`: the report of a run, made when it is asked for and kept until its files change."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from roll.errors import ConfigError
from roll.report.command import render
from roll.report.run_files import find_run, read_run
from roll.studio.live_run import Mark, marks_of
from roll.studio.run_list import RunList, key_of

_STEPS = 6
_MOST = 8
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'self'"
"""Policy for documents that hold what others wrote: no script, nothing fetched."""


@dataclass(frozen=True)
class _Made:
    """A report, and the files that it is of."""

    marks: dict[Path, Mark]
    html: str


class Reports:
    """Cache of the reports requested last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[Path, _Made] = {}

    def of(self, directory: Path) -> str:
        """The report by now; drawn only where a file is new, gone or another one than before. Threads may ask at once.
        Raises ConfigError where there is no run."""
        with self._lock:
            marks = marks_of(find_run(directory))
            made = self._made.pop(directory, None)
            if made is None or made.marks != marks:
                made = _Made(marks, render([read_run(directory)], _STEPS, f"/run/{key_of(directory)}").html)
            self._made[directory] = made
            for old in list(self._made)[:-_MOST]:
                del self._made[old]
            return made.html


def add(app: FastAPI, run_list: RunList) -> None:
    reports = Reports()

    @app.get("/report/{key}")
    def report(key: str) -> Response:
        directory = run_list.directory(key)
        if directory is None:
            return PlainTextResponse("No such run.", 404)
        try:
            html = reports.of(directory)
        except ConfigError as error:
            return PlainTextResponse(str(error), 404)
        return HTMLResponse(html, headers={"Content-Security-Policy": POLICY})
