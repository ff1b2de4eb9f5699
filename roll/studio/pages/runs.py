"""The first page: all runs, with columns of choice, notes and an archive, and a choice of runs to compare."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from nicegui import ui
from nicegui.events import GenericEventArguments

from roll.report.figures import leaves
from roll.report.run_files import RunFiles
from roll.run.display.view import duration
from roll.studio.live_run import State
from roll.studio.pages.frame import REFRESH_S, STATE_COLORS, age, frame, number
from roll.studio.run_list import Glance, RunList
from roll.utils.text import show, visible

_ANY, _ARCHIVED = "any state", "archived"
_COLUMNS = [
    {"name": name, "label": label, "field": name, "align": "left", "sortable": True}
    | ({"classes": "wide", "headerClasses": "wide"} if is_wide else {})
    for name, label, is_wide in (
        ("name", "run", False), ("state", "state", False), ("health", "health", False), ("step", "step", False),
        ("course", "reward or loss", True),
        ("reward", "last", False), ("validation", "validation", True), ("kind", "kind", True),
        ("model", "model", True), ("algorithm", "algorithm", True), ("ran", "duration", True),
        ("age", "last written", True), ("tags", "tags", True), ("note", "note", True),
    )
]  # fmt: skip
_NAMES = [str(column["name"]) for column in _COLUMNS]
_NUMBER = "value => typeof value === 'number' ? Number(value.toPrecision(4)) : value"
for _column in _COLUMNS:
    _column |= {":format": _NUMBER} if _column["name"] in ("reward", "validation") else {}
_EDIT = """<q-popup-edit v-model="props.row.FIELD" v-slot="scope"
@before-show="$parent.$emit('edits', true)" @hide="$parent.$emit('edits', false)"
@update:model-value="text => $parent.$emit('write', {what: 'WHAT', key: props.row.key, text})">
<q-input v-model="scope.value" dense autofocus aria-label="FIELD" @keyup.enter="scope.set"/></q-popup-edit>"""
_NAME = """<q-td :props="props"><b v-if="props.row.head">{{ props.row.head }}</b><template v-else>
<a :href="`/run/${props.row.key}`" class="text-primary">{{ props.value }}</a>
<q-btn flat dense round size="xs" icon="edit" class="soft" aria-label="rename">EDIT</q-btn>
<div class="soft mono place">{{ props.row.directory }}</div></template></q-td>"""
_STATE = """<q-td :props="props"><q-badge v-if="props.value" :color="props.row.color">{{ props.value }}</q-badge>
</q-td>"""
_STEP = """<q-td :props="props"><template v-if="props.row.head"/><template v-else-if="props.row.evaluates">-</template>
<template v-else>{{ props.value }}<span
v-if="props.row.of" class="soft"> of {{ props.row.of }}</span><q-linear-progress v-if="props.row.of"
:value="props.value / props.row.of" size="3px" style="width: 70px"/></template></q-td>"""
_COURSE = """<q-td :props="props" class="wide"><svg v-if="props.row.line" width="110" height="26" role="img"
:aria-label="props.row.course"><polyline :points="props.row.line" fill="none" stroke="var(--accent)"
stroke-width="1.5"/></svg></q-td>"""
_RAN = '<q-td :props="props" class="wide">{{ props.row.ran_for }}</q-td>'
_AGE = '<q-td :props="props" class="wide">{{ props.row.ago }}</q-td>'
_NOTE = """<q-td :props="props" class="wide" style="white-space: normal; min-width: 90px; cursor: text">
<template v-if="!props.row.head">{{ props.value }}<span v-if="!props.value" class="soft">...</span>EDIT</template>
</q-td>"""
_TAGS = _NOTE.replace(
    "{{ props.value }}",
    """<q-badge v-for="tag in (props.value || '').split(',')" v-show="tag.trim()"
outline color="primary" class="q-mr-xs">{{ tag.trim() }}</q-badge>""",
)


def _with_edit(slot: str, field: str, what: str) -> str:
    return slot.replace("EDIT", _EDIT.replace("FIELD", field).replace("WHAT", what))


_SLOTS = {
    "name": _with_edit(_NAME, "name", "names"), "state": _STATE, "step": _STEP, "course": _COURSE, "ran": _RAN,
    "age": _AGE, "tags": _with_edit(_TAGS, "tags", "tags"), "note": _with_edit(_NOTE, "note", "notes"),
}  # fmt: skip
_BOX = '<q-checkbox v-if="!props.row.head" v-model="props.selected" dense/>'
_SORT = """(rows, by, descending) => rows.slice().sort((a, b) => {
    const order = (x, y) => typeof x === "number" && typeof y === "number" ? x - y
        : String(x ?? "").localeCompare(String(y ?? ""), undefined, {numeric: true});
    return order(a.group, b.group) || !!b.head - !!a.head || order(a[by], b[by]) * (descending ? -1 : 1);
})"""
_FILTER = """(rows, text, columns, cell) => {
    const has = row => columns.some(column => `${cell(column, row) ?? ""}`.toLowerCase().includes(text.toLowerCase()));
    const found = rows.filter(row => !row.head && has(row));
    return rows.filter(row => found.includes(row) || row.head && found.some(each => each.group === row.group));
}"""
MOST_COMPARED = 8


def add(run_list: RunList) -> None:
    @ui.page("/")
    def page() -> None:
        with frame("Runs", "Runs"):
            RunsView(run_list)


class RunsView:
    """The table of all runs, with what narrows it."""

    def __init__(self, run_list: RunList):
        self._run_list, self._notes = run_list, run_list.notes
        self._rows: list[dict[str, Any]] = []
        self._values: dict[str, tuple[RunFiles, dict[str, Any]]] = {}
        self._is_edited = False
        noted = self._notes.noted
        columns = noted.columns or _NAMES
        with ui.row().classes("items-center full-width"):
            ui.label("Runs").classes("text-h5")
            ui.label(", ".join(str(folder) for folder in run_list.folders)).classes("soft mono wide")
            ui.space()
            compare = ui.button("Compare", icon="stacked_line_chart", on_click=self._compare).props("no-caps dense")
            compare.tooltip(f"the curves of the chosen runs, 2 to {MOST_COMPARED}, in the same charts")
            self._put = ui.button("Archive", icon="archive", on_click=self._archive).props("no-caps dense flat")
            self._put.tooltip("the chosen runs; their files stay as they are")
            self._columns = ui.select(columns, value=columns, multiple=True, with_input=True, label="columns")
            self._columns.on_value_change(self._choose).props("dense outlined options-dense hide-selected")
            self._columns.style("width: 150px").tooltip("any key of a configuration, and the last value of any metric")
            groups = list(dict.fromkeys(["", noted.group, *columns]))
            self._group = ui.select(groups, value=noted.group, label="group by")
            self._group.on_value_change(self._choose).props("dense outlined options-dense").style("width: 130px")
            self._group.tooltip("parts of the table by the values of a column, each with the means of its numbers")
            self._state = ui.select([_ANY, *get_args(State), _ARCHIVED], value=_ANY, on_change=self._narrow)
            self._state.props("dense outlined options-dense").style("width: 130px")
            search = ui.input(placeholder="search").props("dense outlined clearable")
        self._table = ui.table(
            columns=_columns(columns), rows=[], row_key="key", selection="multiple", pagination={"rowsPerPage": 25}
        )
        self._table.classes("full-width").props("flat bordered dense")
        self._table.props.update({":sort-method": _SORT, ":filter-method": _FILTER})
        self._table.add_slot("body-selection", _BOX)
        for name, slot in _SLOTS.items():
            self._table.add_slot(f"body-cell-{name}", slot)
        self._table.bind_filter_from(search, "value")
        self._table.on("write", self._write)
        self._table.on("edits", self._edits)
        with self._table.add_slot("no-data"):
            ui.label("No run yet. One that writes below these folders appears here by itself.").classes("soft")
        compare.bind_enabled_from(self._table, "selected", lambda _: 2 <= len(self._chosen()) <= MOST_COMPARED)
        ui.timer(REFRESH_S, self._refresh)

    async def _refresh(self) -> None:
        self._rows, names = await asyncio.to_thread(self._read)
        if names != self._columns.options:
            self._columns.set_options(names, value=self._columns.value)
            self._group.set_options(list(dict.fromkeys(["", self._group.value, *names])), value=self._group.value)
        if not self._is_edited:  # new rows would close what somebody types in
            self._narrow()

    def _read(self) -> tuple[list[dict[str, Any]], list[str]]:
        """The rows, and all columns that can be chosen."""
        known = self._values
        self._values = {
            key: known[key] if key in known and known[key][0] is files else (files, _values(files))
            for key, files in self._run_list.files()
        }
        values = {key: value for key, (_, value) in self._values.items()}
        names = sorted({name for each in values.values() for name in each})
        shown = [*(self._columns.value or []), self._group.value]
        chosen = [name for name in shown if name and name not in _NAMES]
        noted = self._notes.noted
        rows = [
            _row(glance, self._run_list.folders)
            | {name: values.get(glance.key, {}).get(name) for name in chosen}
            | {"note": visible(noted.notes.get(glance.key, "")), "tags": visible(noted.tags.get(glance.key, ""))}
            for glance in self._run_list.glances()
        ]
        return rows, list(dict.fromkeys([*_NAMES, *names, *chosen]))

    def _narrow(self) -> None:
        archived, state = self._notes.noted.archived, self._state.value
        is_archive = state == _ARCHIVED
        self._put.set_text("Take back" if is_archive else "Archive")
        rows = [row for row in self._rows if (row["key"] in archived) == is_archive]
        rows = [row for row in rows if state in (_ANY, _ARCHIVED, row["state"])]
        rows = grouped(rows, self._group.value)
        if rows != self._table.rows:
            self._table.rows = rows

    async def _choose(self) -> None:
        columns = self._columns.value if self._columns.value != _NAMES else []
        self._notes.choose(columns=columns, group=self._group.value or "")
        self._table.columns = _columns(self._columns.value or _NAMES)
        await self._refresh()

    async def _write(self, event: GenericEventArguments) -> None:
        if event.args["what"] in ("notes", "tags", "names"):
            self._notes.write(event.args["what"], event.args["key"], event.args["text"] or "")
            await self._refresh()

    def _edits(self, event: GenericEventArguments) -> None:
        self._is_edited = bool(event.args)
        if not self._is_edited:
            self._narrow()

    def _archive(self) -> None:
        self._notes.archive(self._chosen(), self._state.value != _ARCHIVED)
        self._table.selected = []
        self._narrow()

    def _compare(self) -> None:
        ui.navigate.to(compare_address(self._chosen()))

    def _chosen(self) -> list[str]:
        """Keys of the runs that are ticked."""
        return [row["key"] for row in self._table.selected if "head" not in row]


def grouped(rows: Sequence[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Rows in groups by their value of a column, below one more each: the value, how many they are, and the means of
    their numbers. As they were where `by` is empty."""
    if not by:
        return list(rows)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        value = row.get(by)
        text = number(value) if isinstance(value, float) else str("none" if value in (None, "") else value)
        groups.setdefault(text, []).append(row | {"group": text})
    found: list[dict[str, Any]] = []
    for text, members in groups.items():
        head: dict[str, Any] = {"key": f"group {text}", "group": text, "head": f"{by} {text}: mean of {len(members)}"}
        for name in members[0]:
            values = [row[name] for row in members if isinstance(row[name], int | float)]
            head |= {name: sum(values) / len(values)} if values else {}
        head |= {"ran_for": duration(head["ran"])} if head.get("ran") else {}
        found += [head, *members]
    return found


def _columns(names: Sequence[str]) -> list[dict[str, Any]]:
    """The columns of these names: usual ones, keys and metrics."""
    usual = [column for column in _COLUMNS if column["name"] in names]
    more = {"align": "left", "sortable": True, ":format": _NUMBER}
    return usual + [{"name": n, "label": visible(n), "field": n} | more for n in names if n not in _NAMES]


def _values(run: RunFiles) -> dict[str, Any]:
    """Values of a run for columns of choice: its keys, and the last value of each metric."""
    keys = leaves(run.config)
    metrics = {name: value for _, row in run.rows for name, value in row.items()}
    return {name: v if isinstance(v, int | float) else visible(show(v, 100)) for name, v in {**keys, **metrics}.items()}


def compare_address(keys: Sequence[str]) -> str:
    return f"/compare?runs={','.join(keys)}"


def short_place(directory: Path, folders: Sequence[Path]) -> str:
    """The folder of a run, from the one that is served."""
    inside = next((folder for folder in folders if directory.is_relative_to(folder)), None)
    return str(directory if inside is None or inside == directory else directory.relative_to(inside))


def _row(glance: Glance, folders: Sequence[Path]) -> dict[str, Any]:
    kind = ", ".join(filter(None, (glance.about.kind, "evaluation" * glance.about.evaluates, glance.about.forked)))
    return {
        "key": glance.key,
        "name": visible(glance.name),
        "state": glance.state,
        "color": STATE_COLORS[glance.state],
        "health": glance.health,
        "step": glance.step,
        "of": glance.max_steps,
        "evaluates": glance.about.evaluates,
        "reward": glance.reward,
        "course": glance.course[-1] - glance.course[0] if glance.course else 0,
        "line": _polyline(glance.course),
        "validation": glance.validation,
        "kind": visible(kind),
        "model": visible(glance.about.model),
        "algorithm": visible(glance.about.algorithm),
        "ran": glance.ran_s,
        "ran_for": duration(glance.ran_s) if glance.ran_s else "",
        "age": -round(glance.written),
        "ago": f"{age(glance.written)} ago" if glance.written else "",
        "directory": visible(short_place(glance.directory, folders)),
    }


def _polyline(values: Sequence[float], width: float = 110, height: float = 26, margin: float = 2) -> str:
    """Points of an SVG of this size; empty for fewer than two values.

    Example: (0.0, 1.0) gives "2.0,24.0 108.0,2.0".
    """
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    across = (width - 2 * margin) / (len(values) - 1)
    up = (height - 2 * margin) / (high - low) if high > low else 0.0
    base = height - margin if high > low else height / 2
    return " ".join(
        f"{margin + across * number:.1f},{base - up * (value - low):.1f}" for number, value in enumerate(values)
    )
