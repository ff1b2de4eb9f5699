"""The first page: all runs, with columns of choice, notes and an archive, and a choice of runs to compare."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from nicegui import ui

from roll.report.figures import leaves
from roll.report.run_files import RunFiles
from roll.run.display.view import duration
from roll.studio.live_run import State
from roll.studio.notes import Notes
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
        ("age", "last written", True), ("note", "note", True),
    )
]  # fmt: skip
_NAMES = [str(column["name"]) for column in _COLUMNS]
_NUMBER = "value => typeof value === 'number' ? Number(value.toPrecision(4)) : value"
_NAME = """<q-td :props="props"><a :href="`/run/${props.row.key}`" class="text-primary">{{ props.value }}</a>
<div class="soft mono place">{{ props.row.directory }}</div></q-td>"""
_STATE = '<q-td :props="props"><q-badge :color="props.row.color">{{ props.value }}</q-badge></q-td>'
_STEP = """<q-td :props="props"><template v-if="props.row.evaluates">-</template><template v-else>{{ props.value }}<span
v-if="props.row.of" class="soft"> of {{ props.row.of }}</span><q-linear-progress v-if="props.row.of"
:value="props.value / props.row.of" size="3px" style="width: 70px"/></template></q-td>"""
_COURSE = """<q-td :props="props" class="wide"><svg v-if="props.row.line" width="110" height="26" role="img"
:aria-label="props.row.course"><polyline :points="props.row.line" fill="none" stroke="#4a74e0" stroke-width="1.5"/>
</svg></q-td>"""
_RAN = '<q-td :props="props" class="wide">{{ props.row.ran_for }}</q-td>'
_AGE = '<q-td :props="props" class="wide">{{ props.row.ago }}</q-td>'
_NOTE = """<q-td :props="props" class="wide" style="white-space: normal; min-width: 90px; cursor: text">
{{ props.value }}<span v-if="!props.value" class="soft">...</span>
<q-popup-edit v-model="props.row.note" v-slot="scope" @update:model-value="() => $parent.$emit('note', props.row)">
<q-input v-model="scope.value" dense autofocus @keyup.enter="scope.set"/></q-popup-edit></q-td>"""
_SLOTS = {"name": _NAME, "state": _STATE, "step": _STEP, "course": _COURSE, "ran": _RAN, "age": _AGE, "note": _NOTE}
MOST_COMPARED = 8


def add(run_list: RunList) -> None:
    notes = Notes(run_list.folders[0])

    @ui.page("/")
    def page() -> None:
        with frame("Runs", "Runs"):
            RunsView(run_list, notes)


class RunsView:
    """The table of all runs, with what narrows it."""

    def __init__(self, run_list: RunList, notes: Notes):
        self._run_list, self._notes = run_list, notes
        self._rows: list[dict[str, Any]] = []
        self._values: dict[str, tuple[RunFiles, dict[str, Any]]] = {}
        columns = notes.noted.columns or _NAMES
        with ui.row().classes("items-center full-width"):
            ui.label("Runs").classes("text-h5")
            ui.label(", ".join(str(folder) for folder in run_list.folders)).classes("soft mono wide")
            ui.space()
            compare = ui.button("Compare", icon="stacked_line_chart", on_click=self._compare).props("no-caps dense")
            compare.tooltip(f"the curves of the chosen runs, 2 to {MOST_COMPARED}, in the same charts")
            self._put = ui.button("Archive", icon="archive", on_click=self._archive).props("no-caps dense flat")
            self._put.tooltip("the chosen runs; their files stay as they are")
            self._columns = ui.select(columns, value=columns, multiple=True, with_input=True, on_change=self._choose)
            self._columns.props('dense outlined options-dense display-value="columns"')
            self._columns.style("width: 150px").tooltip("any key of a configuration, and the last value of any metric")
            self._state = ui.select([_ANY, *get_args(State), _ARCHIVED], value=_ANY, on_change=self._narrow)
            self._state.props("dense outlined options-dense").style("width: 130px")
            search = ui.input(placeholder="search").props("dense outlined clearable")
        self._table = ui.table(
            columns=_columns(columns), rows=[], row_key="key", selection="multiple", pagination={"rowsPerPage": 25}
        )
        self._table.classes("full-width").props("flat bordered dense")
        for name, slot in _SLOTS.items():
            self._table.add_slot(f"body-cell-{name}", slot)
        self._table.bind_filter_from(search, "value")
        self._table.on("note", lambda event: self._notes.note(event.args["key"], event.args["note"] or ""))
        with self._table.add_slot("no-data"):
            ui.label("No run yet. One that writes below these folders appears here by itself.").classes("soft")
        compare.bind_enabled_from(self._table, "selected", lambda chosen: 2 <= len(chosen) <= MOST_COMPARED)
        ui.timer(REFRESH_S, self._refresh)

    async def _refresh(self) -> None:
        self._rows, names = await asyncio.to_thread(self._read)
        if names != self._columns.options:
            self._columns.set_options(names, value=self._columns.value)
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
        chosen = [name for name in self._columns.value or [] if name not in _NAMES]
        notes = self._notes.noted.notes
        rows = [
            _row(glance, self._run_list.folders)
            | {name: values.get(glance.key, {}).get(name) for name in chosen}
            | {"note": visible(notes.get(glance.key, ""))}
            for glance in self._run_list.glances()
        ]
        return rows, list(dict.fromkeys([*_NAMES, *names, *chosen]))

    def _narrow(self) -> None:
        archived, state = self._notes.noted.archived, self._state.value
        is_archive = state == _ARCHIVED
        self._put.set_text("Take back" if is_archive else "Archive")
        rows = [row for row in self._rows if (row["key"] in archived) == is_archive]
        rows = [row for row in rows if state in (_ANY, _ARCHIVED, row["state"])]
        if rows != self._table.rows:
            self._table.rows = rows

    async def _choose(self) -> None:
        self._notes.choose(self._columns.value or None)
        self._table.columns = _columns(self._columns.value or _NAMES)
        await self._refresh()

    def _archive(self) -> None:
        self._notes.archive([row["key"] for row in self._table.selected], self._state.value != _ARCHIVED)
        self._table.selected = []
        self._narrow()

    def _compare(self) -> None:
        ui.navigate.to(compare_address([row["key"] for row in self._table.selected]))


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
        "reward": number(glance.reward),
        "course": glance.course[-1] - glance.course[0] if glance.course else 0,
        "line": _polyline(glance.course),
        "validation": number(glance.validation),
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
