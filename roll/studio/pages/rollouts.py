"""The rollouts of a run: a table that fetches the rows it shows, and the attempt that was chosen."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from nicegui import ui
from nicegui.events import GenericEventArguments

from roll.studio.disk_reads import Unanswered, Waits
from roll.studio.pages.frame import REFRESH_S, frame, later
from roll.studio.pages.rollout_data import query_values
from roll.studio.rollout_index import Query, RolloutIndex, RolloutIndexes

_PATIENCE_S = 30.0
_ANY = "any"
_REWARD = "p => p.value === undefined ? '' : p.value === null ? 'failed' : Number(p.value.toPrecision(4))"
_COLUMNS: list[dict[str, Any]] = [
    {"field": "step", "width": 70, "sort": "desc"},
    {"field": "kind", "width": 65},
    {"field": "domain", "width": 90},
    {"field": "reward", "width": 80, ":valueFormatter": _REWARD},
    {"field": "finish", "width": 80},
    {"field": "tokens", "width": 75},
    {"field": "turns", "width": 70},
    {"field": "prompt", "flex": 1, "minWidth": 110, "sortable": False},
    {"field": "response", "flex": 1, "minWidth": 110, "sortable": False},
]
_FETCH = """async p => {
    const sort = p.sortModel[0] || { colId: "step", sort: "desc" };
    const asked = new URLSearchParams(QUERY);
    asked.set("start", p.startRow);
    asked.set("end", p.endRow);
    asked.set("order", sort.colId);
    asked.set("descending", sort.sort === "desc");
    try {
        const answer = await fetch("/data/KEY/rollouts?" + asked);
        const found = await answer.json();
        p.successCallback(found.rows, found.count);
    } catch (error) { p.failCallback(); }
}"""


def add(indexes: RolloutIndexes) -> None:
    waits = Waits()

    @ui.page("/run/{key}/rollouts")
    def page(key: str) -> None:
        async def build() -> None:
            index = await _updated(waits, indexes, key)
            if index is None:
                ui.label("There is no such run below the folders, or it was removed.")
                return
            view = RolloutView(key, indexes, waits)
            view.show(index)
            ui.timer(REFRESH_S, view.refresh, immediate=False)

        with frame("Rollouts"):
            later(build)


async def _updated(waits: Waits, indexes: RolloutIndexes, key: str) -> RolloutIndex | None:
    """Many rollouts take a while to be read at first."""
    return await waits.wait(key, lambda: indexes.updated(key, _PATIENCE_S), _PATIENCE_S)


class RolloutView:
    """Filters above, rows on the left, the chosen attempt on the right."""

    def __init__(self, key: str, indexes: RolloutIndexes, waits: Waits):
        self._key, self._indexes, self._waits = key, indexes, waits
        self._index: RolloutIndex | None = None
        self._version = 0
        with ui.row().classes("items-center full-width").style("gap: 10px"):
            ui.link("Run", f"/run/{key}")
            ui.label("Rollouts").classes("text-h5 q-mr-md")
            self._fields = {
                "text": self._input("search in texts"),
                "domain": self._select("domain"),
                "kind": self._select("kind"),
                "finish": self._select("finish"),
                "least_reward": self._number("reward from"),
                "most_reward": self._number("to"),
                "first_step": self._number("step from"),
                "last_step": self._number("to"),
                "failed": ui.checkbox("failed", on_change=self._query_index),
            }
            ui.space()
            self._count = ui.label().classes("soft")
        with ui.splitter(value=60).classes("full-width").style("height: calc(100vh - 170px)") as splitter:
            with splitter.before:
                self._grid = self._grid_of()
                self._grid.on("rowClicked", self._choose, ["data"])
            with splitter.after:
                self._hint = ui.label("A row shows its attempt here.").classes("soft q-pa-md")
                self._detail = ui.element("iframe").classes("full-width full-height")
                self._detail.props('sandbox="" title="rollout"').style("border: 0; background: #fff")
                self._detail.set_visibility(False)

    def show(self, index: RolloutIndex) -> None:
        """Show the choices, and the rows."""
        self._index = index
        for name in ("domain", "kind", "finish"):
            field = self._fields[name]
            assert isinstance(field, ui.select)
            field.set_options([_ANY, *index.values(name)], value=field.value)
        self._query_index()

    async def refresh(self) -> None:
        with suppress(Unanswered):
            self._show_newer(await _updated(self._waits, self._indexes, self._key))

    def _show_newer(self, index: RolloutIndex | None) -> None:
        if index is not None and (index is not self._index or index.version != self._version):
            self.show(index)

    def _query_index(self) -> None:
        """Has the table fetch its rows anew."""
        if self._index is None:
            return
        self._version = self._index.version
        query = self._query()
        self._count.set_text(f"{self._index.count(query):,} of {self._index.count(Query()):,}")
        self._grid.run_grid_method("setGridOption", "datasource", {":getRows": self._fetch(query)})

    def _query(self) -> Query:
        values = {name: field.value for name, field in self._fields.items()}
        steps = {name: None if values[name] is None else int(values[name]) for name in ("first_step", "last_step")}
        chosen = {name: "" if values[name] == _ANY else values[name] for name in ("domain", "kind", "finish")}
        return Query(**{**values, **steps, **chosen, "text": values["text"] or ""})

    def _fetch(self, query: Query) -> str:
        return _FETCH.replace("QUERY", json.dumps(query_values(asdict(query)))).replace("KEY", self._key)

    def _choose(self, event: GenericEventArguments) -> None:
        number = int((event.args.get("data") or {}).get("id", 0))
        self._detail.props(f'src="/data/{self._key}/rollout/{number}"')
        self._detail.set_visibility(True)
        self._hint.set_visibility(False)

    def _grid_of(self) -> ui.aggrid:
        options = {
            "columnDefs": _COLUMNS,
            "defaultColDef": {"sortable": True, "resizable": True, "suppressMovable": True},
            "rowModelType": "infinite",
            "cacheBlockSize": 100,
            "maxBlocksInCache": 20,
            "rowHeight": 30,
            "datasource": {":getRows": self._fetch(Query())},
        }
        return ui.aggrid(options, theme="balham").style("height: 100%")

    def _input(self, label: str) -> ui.input:
        field = ui.input(label, on_change=self._query_index).props("dense outlined clearable debounce=300")
        return field.style("width: 240px")

    def _select(self, label: str) -> ui.select:
        field = ui.select([_ANY], value=_ANY, label=label, on_change=self._query_index).props(
            "dense outlined options-dense"
        )
        return field.style("width: 130px")

    def _number(self, label: str) -> ui.number:
        field = ui.number(label, on_change=self._query_index).props("dense outlined clearable debounce=300")
        return field.style("width: 110px")
