"""The first page: all runs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from nicegui import ui

from roll.studio.disk_reads import Unanswered, Waits
from roll.studio.pages.frame import REFRESH_S, STATE_COLORS, age, frame, number
from roll.studio.run_list import Glance, RunList
from roll.utils.text import visible

_COLUMNS = [
    {"name": name, "label": label, "field": name, "align": "left", "sortable": True}
    for name, label in (
        ("name", "run"), ("state", "state"), ("step", "step"), ("reward", "last reward"), ("validation", "validation"),
        ("age", "last written"), ("directory", "directory"),
    )
]  # fmt: skip
_NAME = '<q-td :props="props"><a :href="`/run/${props.row.key}`" class="text-primary">{{ props.value }}</a></q-td>'
_STATE = '<q-td :props="props"><q-badge :color="props.row.color">{{ props.value }}</q-badge></q-td>'
_STEP = """<q-td :props="props">{{ props.value }}<span v-if="props.row.of" class="soft"> of {{ props.row.of }}</span>
<q-linear-progress v-if="props.row.of" :value="props.value / props.row.of" size="3px" style="width: 90px"/></q-td>"""
_REWARD = """<q-td :props="props">{{ props.value }} <span class="soft">{{ props.row.curve }}</span></q-td>"""
_AGE = '<q-td :props="props">{{ props.row.ago }} ago</q-td>'


def add(run_list: RunList) -> None:
    waits = Waits()

    @ui.page("/")
    def page() -> None:
        with frame("Runs", "Runs"):
            with ui.row().classes("items-center full-width"):
                ui.label("Runs").classes("text-h5")
                ui.label(", ".join(str(folder) for folder in run_list.folders)).classes("soft mono")
                ui.space()
                search = ui.input(placeholder="search").props("dense outlined clearable")
            table = ui.table(columns=_COLUMNS, rows=[], row_key="key", pagination={"rowsPerPage": 25})
            table.classes("full-width").props("flat bordered")
            for name, slot in (
                ("name", _NAME), ("state", _STATE), ("step", _STEP), ("reward", _REWARD), ("age", _AGE),
            ):  # fmt: skip
                table.add_slot(f"body-cell-{name}", slot)
            table.bind_filter_from(search, "value")
            with table.add_slot("no-data"):
                ui.label("No run yet. One that writes below these folders appears here by itself.").classes("soft")

            async def refresh() -> None:
                with suppress(Unanswered):
                    glances = await waits.wait("runs", run_list.glances)
                    show([_row(glance) for glance in glances])

            def show(rows: list[dict[str, Any]]) -> None:
                if rows != table.rows:
                    table.rows = rows

            ui.timer(REFRESH_S, refresh)


def _row(glance: Glance) -> dict[str, Any]:
    return {
        "key": glance.key,
        "name": visible(glance.name),
        "state": glance.state,
        "color": STATE_COLORS[glance.state],
        "step": glance.step,
        "of": glance.max_steps,
        "reward": number(glance.reward),
        "curve": visible(glance.curve),
        "validation": number(glance.validation),
        "age": -round(glance.written),
        "ago": age(glance.written),
        "directory": visible(str(glance.directory)),
    }
