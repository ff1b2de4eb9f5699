"""The first page: all runs, and a choice of them to compare."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from nicegui import ui

from roll.run.display.view import duration
from roll.studio.live_run import State
from roll.studio.pages.frame import REFRESH_S, STATE_COLORS, age, frame, number
from roll.studio.run_list import Glance, RunList
from roll.utils.text import visible

_ANY = "any state"
_COLUMNS = [
    {"name": name, "label": label, "field": name, "align": "left", "sortable": True}
    | ({"classes": "wide", "headerClasses": "wide"} if is_wide else {})
    for name, label, is_wide in (
        ("name", "run", False), ("state", "state", False), ("health", "health", False), ("step", "step", False),
        ("course", "reward or loss", True),
        ("reward", "last", False), ("validation", "validation", True), ("kind", "kind", True),
        ("model", "model", True), ("algorithm", "algorithm", True), ("ran", "duration", True),
        ("age", "last written", True),
    )
]  # fmt: skip
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
_SLOTS = {"name": _NAME, "state": _STATE, "step": _STEP, "course": _COURSE, "ran": _RAN, "age": _AGE}
MOST_COMPARED = 8


def add(run_list: RunList) -> None:
    @ui.page("/")
    def page() -> None:
        with frame("Runs", "Runs"):
            RunsView(run_list)


class RunsView:
    """The table of all runs, with what narrows it."""

    def __init__(self, run_list: RunList):
        self._run_list = run_list
        self._rows: list[dict[str, Any]] = []
        with ui.row().classes("items-center full-width"):
            ui.label("Runs").classes("text-h5")
            ui.label(", ".join(str(folder) for folder in run_list.folders)).classes("soft mono wide")
            ui.space()
            compare = ui.button("Compare", icon="stacked_line_chart", on_click=self._compare).props("no-caps dense")
            compare.tooltip(f"the curves of the chosen runs, 2 to {MOST_COMPARED}, in the same charts")
            self._state = ui.select([_ANY, *get_args(State)], value=_ANY, on_change=self._narrow)
            self._state.props("dense outlined options-dense").style("width: 130px")
            search = ui.input(placeholder="search").props("dense outlined clearable")
        self._table = ui.table(
            columns=_COLUMNS, rows=[], row_key="key", selection="multiple", pagination={"rowsPerPage": 25}
        )
        self._table.classes("full-width").props("flat bordered dense")
        for name, slot in _SLOTS.items():
            self._table.add_slot(f"body-cell-{name}", slot)
        self._table.bind_filter_from(search, "value")
        with self._table.add_slot("no-data"):
            ui.label("No run yet. One that writes below these folders appears here by itself.").classes("soft")
        compare.bind_enabled_from(self._table, "selected", lambda chosen: 2 <= len(chosen) <= MOST_COMPARED)
        ui.timer(REFRESH_S, self._refresh)

    async def _refresh(self) -> None:
        glances = await asyncio.to_thread(self._run_list.glances)
        self._rows = [_row(glance, self._run_list.folders) for glance in glances]
        self._narrow()

    def _narrow(self) -> None:
        rows = [row for row in self._rows if self._state.value in (_ANY, row["state"])]
        if rows != self._table.rows:
            self._table.rows = rows

    def _compare(self) -> None:
        ui.navigate.to(compare_address([row["key"] for row in self._table.selected]))


def compare_address(keys: Sequence[str]) -> str:
    return f"/compare?runs={','.join(keys)}"


def _place(directory: Path, folders: Sequence[Path]) -> str:
    """The folder of a run, from the one that is served."""
    inside = next((folder for folder in folders if directory.is_relative_to(folder)), None)
    return str(directory if inside is None or inside == directory else directory.relative_to(inside))


def _row(glance: Glance, folders: Sequence[Path]) -> dict[str, Any]:
    kind = f"{glance.about.kind}, evaluation" if glance.about.evaluates else glance.about.kind
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
        "kind": kind.removeprefix(", "),
        "model": visible(glance.about.model),
        "algorithm": visible(glance.about.algorithm),
        "ran": glance.ran_s,
        "ran_for": duration(glance.ran_s) if glance.ran_s else "",
        "age": -round(glance.written),
        "ago": f"{age(glance.written)} ago" if glance.written else "",
        "directory": visible(_place(glance.directory, folders)),
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
