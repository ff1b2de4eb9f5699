"""`/report/KEY`: the report of a run, made when it is asked for."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from roll.errors import ConfigError
from roll.report.command import render
from roll.report.run_files import read_run
from roll.studio.run_list import RunList

_STEPS = 6
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'self'"
"""Policy for documents that hold what others wrote: no script, nothing fetched."""


def add(app: FastAPI, run_list: RunList) -> None:
    @app.get("/report/{key}")
    def report(key: str) -> Response:
        directory = run_list.directory(key)
        if directory is None:
            return PlainTextResponse("No such run.", 404)
        try:
            html = render([read_run(directory)], _STEPS, f"/run/{key}").html
        except ConfigError as error:
            return PlainTextResponse(str(error), 404)
        return HTMLResponse(html, headers={"Content-Security-Policy": POLICY})
