"""Data that the page of rollouts fetches: rows as JSON, and one attempt as a document without scripts."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from roll.report.command import render_rollout
from roll.report.difference import render_pair
from roll.studio.pages.log import ALL_LEVELS, last_lines
from roll.studio.pages.report import POLICY
from roll.studio.rollout_index import SORTABLE, Query, RolloutIndexes
from roll.utils.text import visible

_MOST_ROWS = 500  # of one answer


def add(app: FastAPI, indexes: RolloutIndexes) -> None:
    @app.get("/data/{key}/rollouts")
    def rows(
        key: str,
        start: int = 0,
        end: int = 100,
        order: str = "step",
        descending: bool = True,
        domain: str = "",
        kind: str = "",
        finish: str = "",
        least_reward: float | None = None,
        most_reward: float | None = None,
        first_step: int | None = None,
        last_step: int | None = None,
        failed: bool = False,
        text: str = "",
        advantage: str = "",
        groups: bool = False,
    ) -> Response:
        index = indexes.known(key)
        if index is None or order not in SORTABLE:
            return PlainTextResponse("No such run or column.", 404)
        query = Query(
            domain, kind, finish, least_reward, most_reward, first_step, last_step, failed, text, advantage, groups
        )  # fmt: skip
        end = min(end, start + _MOST_ROWS)
        page = index.rows(query, start, end, order, descending)
        return JSONResponse({"rows": page.rows, "count": page.count})

    @app.get("/data/{key}/rollout/{number}")
    def rollout(key: str, number: int, beside: int | None = None) -> Response:
        """Page of an attempt, with another one at its left."""
        index = indexes.known(key)
        record = None if index is None else index.record(number)
        other = None if index is None or beside is None else index.record(beside)
        if record is None:
            return PlainTextResponse("This attempt is no longer there: the run has written its step again.", 404)
        html = render_rollout(record) if other is None else render_pair(other, record)
        return HTMLResponse(html, headers={"Content-Security-Policy": POLICY})

    @app.get("/data/{key}/output/{number}")
    def output(key: str, number: int) -> Response:
        path = indexes.output(key, number)
        if path is None:
            return PlainTextResponse("This attempt has no output, or its file is gone.", 404)
        return PlainTextResponse(visible("\n".join(last_lines(path, ALL_LEVELS))))


def query_values(values: dict[str, Any]) -> dict[str, str]:
    """Words of an address for what a person filled in. Example: {"domain": "math", "failed": False} -> {"domain":
    "math"}."""
    return {name: str(value).lower() if value is True else str(value) for name, value in values.items() if _is(value)}


def _is(value: Any) -> bool:
    return value is not None and value is not False and value != ""
