"""The rollouts of a run: a table that fetches the rows it shows, and the attempt that was chosen."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from functools import partial
from typing import Any

from nicegui import ui
from nicegui.events import GenericEventArguments, KeyEventArguments

from roll.studio.pages.frame import COLOR_FRAMES, REFRESH_S, frame, later
from roll.studio.pages.rollout_data import query_values
from roll.studio.rollout_index import (
    FIRST_STEP,
    SIGNS,
    STEP_BEFORE,
    WORST_AND_BEST,
    Query,
    RolloutIndex,
    RolloutIndexes,
)
from roll.studio.run_list import RunList
from roll.utils.text import visible

_ANY, _ALONE = "any", "alone"
_REWARD = "p => p.value === undefined ? '' : p.value === null ? 'failed' : Number(p.value.toPrecision(4))"
_REWARD_STYLE = """p => p.value === undefined ? null : p.value === null || p.value <= 0 ? {color: '#d8503f'}
    : p.value >= 1 ? {color: '#2f9e58'} : {color: 'inherit'}"""
_ADVANTAGE = "p => p.value == null ? '' : (p.value > 0 ? '+' : '') + Number(p.value.toPrecision(3))"
_COLUMNS: list[dict[str, Any]] = [
    {"field": "step", "width": 65, "sort": "desc"},
    {"field": "group_id", "headerName": "group", "width": 75},
    {"field": "reward", "width": 78, ":valueFormatter": _REWARD, ":cellStyle": _REWARD_STYLE},
    {"field": "spread", "headerName": "best - worst", "width": 100, ":valueFormatter": _REWARD},
    {"field": "samples", "width": 85},
    {"field": "advantage", "width": 88, ":valueFormatter": _ADVANTAGE, "hide": True},
    {"field": "prompt", "flex": 1, "minWidth": 110, "sortable": False},
    {"field": "response", "flex": 2, "minWidth": 110, "sortable": False, "hide": True},
    {"field": "truth", "headerName": "ground truth", "width": 110, "sortable": False},
    {"field": "tokens", "width": 75},
    {"field": "finish", "width": 80, "hide": True},
    {"field": "kind", "width": 65},
    {"field": "domain", "width": 85},
    {"field": "turns", "width": 68},
]
_OF_GROUPS, _OF_SAMPLES = ("spread", "samples"), ("advantage", "response", "finish")
_COLUMN_CHOICES = ("domain", "kind", "finish")
_MOST_STEPS = 30  # of a prompt, the last ones
_MOVES = (
    ("keyboard_double_arrow_up", "P", -1, True), ("keyboard_arrow_up", "p", -1, False),
    ("keyboard_arrow_down", "n", 1, False), ("keyboard_double_arrow_down", "N", 1, True),
)  # fmt: skip
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


def add(indexes: RolloutIndexes, run_list: RunList) -> None:
    @ui.page("/run/{key}/rollouts")
    def page(key: str) -> None:
        async def build() -> None:
            index = await asyncio.to_thread(indexes.updated, key)
            if index is None:
                ui.label("There is no such run below the folders, or it was removed.")
                return
            names = {glance.key: glance.name for glance in await asyncio.to_thread(run_list.glances)}
            view = RolloutView(key, indexes, names.get(key, "the run"))
            view.show(index)
            ui.timer(REFRESH_S, view.refresh, immediate=False)

        with frame("Rollouts"):
            later(build)


class RolloutView:
    """Filters above, rows on the left, the chosen attempt with the others at its prompt on the right."""

    def __init__(self, key: str, indexes: RolloutIndexes, name: str):
        self._key, self._indexes = key, indexes
        self._index: RolloutIndex | None = None
        self._version, self._chosen = 0, 0
        with ui.row().classes("items-center full-width").style("gap: 10px"):
            ui.label("Rollouts").classes("text-h5")
            ui.label("of").classes("soft")
            ui.link(visible(name), f"/run/{key}").classes("q-mr-md")
            self._fields = {
                "text": self._input("search in texts"),
                "domain": self._select("domain"),
                "kind": self._select("kind"),
                "finish": self._select("finish"),
                "advantage": self._select("advantage"),
                **self._between("reward", "least_reward", "most_reward"),
                **self._between("step", "first_step", "last_step"),
                "failed": ui.checkbox("failed", on_change=self._query_index),
                "groups": ui.checkbox("one line per prompt", value=True, on_change=self._change_lines),
            }
            ui.space()
            self._count = ui.label().classes("soft")
        with ui.element("div").classes("pair") as self._pair:
            self._grid = self._grid_of()
            self._grid.on("rowClicked", self._choose, ["data"])
            with ui.column().classes("full-height").style("gap: 6px; min-width: 0"):
                self._hint = ui.label(
                    "Choose a row. Keys: n and p for the next and the previous one, N and P for other prompts."
                ).classes("soft q-pa-md")
                with ui.row().classes("items-center").style("gap: 4px 6px") as self._head:
                    for icon, key_name, by, other in _MOVES:
                        button = ui.button(icon=icon, on_click=partial(self._move, by, other))
                        button.props("flat round dense size=sm").tooltip(f"key {key_name}")
                    ways = [_ALONE, WORST_AND_BEST, STEP_BEFORE, FIRST_STEP]
                    self._way = ui.select(ways, value=_ALONE, on_change=lambda: self._open(self._chosen))
                    self._way.props("dense outlined options-dense").tooltip("two answers, the words they differ in")
                    self._no_pair = ui.label().classes("soft")
                    self._output = ui.link("Output", "", new_tab=True).tooltip("what the program wrote")
                    self._siblings = ui.row().classes("items-center").style("gap: 4px")
                    self._same_prompt = ui.row().classes("items-center").style("gap: 4px")
                self._head.set_visibility(False)
                self._detail = ui.element("iframe").classes("full-width card").style("flex: 1; padding: 0")
                self._detail.props('sandbox="allow-same-origin" title="rollout"')  # no script, no form
                self._detail.on("load", js_handler=COLOR_FRAMES)
                self._detail.set_visibility(False)
        ui.keyboard(self._press)

    def show(self, index: RolloutIndex) -> None:
        """Show the choices, and the rows."""
        self._index = index
        choices = {name: index.values(name) for name in _COLUMN_CHOICES} | {"advantage": list(SIGNS)}
        for name, values in choices.items():
            field = self._fields[name]
            assert isinstance(field, ui.select)
            field.set_options([_ANY, *values], value=field.value)
        self._query_index()

    async def refresh(self) -> None:
        index = await asyncio.to_thread(self._indexes.updated, self._key)
        if index is not None and (index is not self._index or index.version != self._version):
            self.show(index)

    def _change_lines(self) -> None:
        """Shows groups or samples, with their columns."""
        is_grouped = bool(self._fields["groups"].value)
        for names, is_shown in ((_OF_GROUPS, is_grouped), (_OF_SAMPLES, not is_grouped)):
            self._grid.run_grid_method("setColumnsVisible", list(names), is_shown)
        self._query_index()

    def _query_index(self) -> None:
        """Has the table fetch its rows anew."""
        if self._index is None:
            return
        self._version = self._index.version
        query = self._query()
        self._count.set_text(f"{self._index.count(query):,} of {self._index.count(Query(groups=query.groups)):,}")
        self._grid.run_grid_method("setGridOption", "datasource", {":getRows": self._fetch(query)})

    def _query(self) -> Query:
        values = {name: field.value for name, field in self._fields.items()}
        steps = {name: None if values[name] is None else int(values[name]) for name in ("first_step", "last_step")}
        chosen = {name: "" if values[name] == _ANY else values[name] for name in (*_COLUMN_CHOICES, "advantage")}
        return Query(**{**values, **steps, **chosen, "text": values["text"] or ""})

    def _fetch(self, query: Query) -> str:
        return _FETCH.replace("QUERY", json.dumps(query_values(asdict(query)))).replace("KEY", self._key)

    def _choose(self, event: GenericEventArguments) -> None:
        self._open(int((event.args.get("data") or {}).get("id", 0)))

    def _open(self, number: int) -> None:
        """Show an attempt, and the rewards of all at its prompt, each to be chosen."""
        assert self._index is not None
        self._chosen = number
        pair = None if self._way.value == _ALONE else self._index.pair(number, self._way.value)
        are_few = self._way.value == WORST_AND_BEST
        self._no_pair.set_text("fewer than two have a reward" if are_few else "no earlier step has this prompt")
        self._no_pair.set_visibility(pair is None and self._way.value != _ALONE)
        shown = number if pair is None else f"{pair[1]}?beside={pair[0]}"
        self._detail.props(f'src="/data/{self._key}/rollout/{shown}"')
        self._pair.classes(add="even" if pair else "", remove="" if pair else "even")
        for element, is_shown in ((self._detail, True), (self._head, True), (self._hint, False)):
            element.set_visibility(is_shown)
        self._output.props(f'href="/data/{self._key}/output/{number}"')
        self._output.set_visibility(self._indexes.output(self._key, number) is not None)
        siblings = self._index.siblings(number)
        rewards = [reward for _, reward, _ in siblings if reward is not None]
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        self._siblings.clear()
        with self._siblings:
            ui.label(f"{len(siblings)} at this prompt, mean {mean:.3g}:").classes("soft")
            for row, reward, advantage in siblings:
                text = "failed" if reward is None else f"{reward:.3g}"
                color = "red-4" if reward is None or reward <= 0 else "green-7" if reward >= 1 else "blue-grey-5"
                chip = ui.button(text, color=color, on_click=partial(self._open, row))
                chip.props(f"dense no-caps size=sm {'unelevated' if row == number else 'outline'}")
                if advantage is not None:
                    chip.tooltip(f"advantage {advantage:+.3g}")
                elif reward is not None:
                    chip.tooltip(f"{reward - mean:+.3g} against the mean")
        self._same_prompt.clear()
        steps = self._index.same_prompt(number)
        with self._same_prompt:
            if len(steps) > 1:
                ui.label("The same prompt at step").classes("soft")
            for row, step, kind, reward in steps[-_MOST_STEPS:] if len(steps) > 1 else []:
                name = (
                    f"{step}{'' if kind == 'train' else f' {kind}'}: {'failed' if reward is None else f'{reward:.3g}'}"
                )
                is_own = row == siblings[0][0]
                chip = ui.button(name, on_click=partial(self._open, row), color="blue-grey-5")
                chip.props(f"dense no-caps size=sm {'unelevated' if is_own else 'outline'}").tooltip("mean reward")

    async def _move(self, by: int, other_group: bool) -> None:
        """Open the next row of the table, or the previous one."""
        if self._index is None:
            return
        columns = await self._grid.run_grid_method("getColumnState")
        order, descending = next(((c["colId"], c["sort"] == "desc") for c in columns if c.get("sort")), ("step", True))
        self._open(self._index.neighbour(self._query(), self._chosen, by, order, descending, other_group))

    async def _press(self, event: KeyEventArguments) -> None:
        move = next((move for move in _MOVES if move[1] == str(event.key)), None)
        if event.action.keydown and move is not None:
            await self._move(*move[2:])

    def _grid_of(self) -> ui.aggrid:
        options = {
            "columnDefs": _COLUMNS,
            "defaultColDef": {"sortable": True, "resizable": True, "suppressMovable": True},
            "rowModelType": "infinite",
            "cacheBlockSize": 100,
            "maxBlocksInCache": 20,
            "rowHeight": 30,
            "datasource": {":getRows": self._fetch(Query(groups=True))},
        }
        return ui.aggrid(options, theme="balham").style("height: 100%")

    def _input(self, label: str) -> ui.input:
        field = ui.input(label, on_change=self._query_index).props("dense outlined clearable debounce=300")
        return field.style("width: 200px")

    def _select(self, label: str) -> ui.select:
        field = ui.select([_ANY], value=_ANY, label=label, on_change=self._query_index).props(
            "dense outlined options-dense"
        )
        return field.style("width: 108px")

    def _between(self, what: str, least: str, most: str) -> dict[str, ui.number]:
        """Two fields that stay beside each other."""
        with ui.row().classes("items-center no-wrap").style("gap: 4px"):
            return {least: self._number(f"{what} from"), most: self._number("to")}

    def _number(self, label: str) -> ui.number:
        field = ui.number(label, on_change=self._query_index).props("dense outlined clearable debounce=300")
        return field.style(f"width: {64 if label == 'to' else 104}px")
