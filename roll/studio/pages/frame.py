"""Frame of every page: its head, the links to the others, and the style."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from nicegui import ui

from roll.report.palette import ACCENT, LOGO_ADDRESS, PALETTE
from roll.report.titles import number_text
from roll.studio.live_run import State
from roll.utils.text import visible

REFRESH_S = 2.0
STATE_COLORS: dict[State, str] = {
    "running": "blue-7", "finished": "green-7", "stopped": "orange-8", "failed": "red-7", "killed": "red-4",
    "unknown": "grey-6", "broken": "red-10",
}  # fmt: skip
_PAGES = {"Runs": "/", "New run": "/new"}
_STYLE = (
    f"{PALETTE}\nbody {{ color-scheme: light; }} body.body--dark {{ color-scheme: dark; }}"
    + """
body { background: var(--page); color: var(--ink); }
.nicegui-content { padding: 20px 28px 40px; gap: 14px; max-width: 1500px; margin: 0 auto; }
.row.items-center, .q-header.items-center { align-items: center; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; }
.soft { color: var(--soft); } .mono { font: 12px/1.55 ui-monospace, monospace; }
.body--dark .q-table__card, .body--dark .q-card { background: var(--card); color: var(--ink); }
iframe { color-scheme: light; } .body--dark iframe { color-scheme: dark; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(310px, 100%), 1fr)); gap: 12px;
  width: 100%; }
.pin { position: absolute; bottom: 8px; right: 12px; }
.pair { display: grid; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); gap: 12px; width: 100%;
  height: calc(100vh - 190px); }
.even { grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }
.q-table td, .q-table th { font-size: 13px; } .q-tab-panel { padding: 12px 0; } .q-tab-panels { background: none; }
.q-table__container { max-width: 100%; }
.keys td { overflow-wrap: anywhere; min-width: 90px; } .lines td { white-space: pre-wrap; }
.place { font-size: 11px; white-space: normal; overflow-wrap: anywhere; min-width: 110px; max-width: 340px; }
@media (max-width: 700px) {
  .nicegui-content { padding: 10px 10px 30px; } .wide { display: none; }
  .q-table td, .q-table th { padding: 4px 6px !important; }
  .pair { grid-template-columns: minmax(0, 1fr); grid-template-rows: 320px minmax(420px, auto); height: auto; }
}
"""
)


@contextmanager
def frame(title: str, active: str = "") -> Iterator[None]:
    """The head with what comes below it."""
    ui.page_title(f"{title} - roll studio")
    ui.colors(primary=ACCENT)
    ui.add_css(_STYLE)
    with ui.header().classes("items-center q-py-sm").style("background: var(--head)"):
        ui.element("img").props(f'src="{LOGO_ADDRESS}" width=22 height=22 alt=""').classes("q-mr-sm")
        ui.label("roll studio").classes("text-subtitle1 text-weight-medium q-mr-lg")
        for name, address in _PAGES.items():
            weight = "text-weight-bold" if name == active else ""
            ui.link(name, address).classes(f"text-white q-mr-md {weight}").style("text-decoration: none")
        ui.space()
        button = ui.button(icon="contrast").props('flat round dense color=white aria-label="dark or light"')
        button.on("click", js_handler=_TURN_DARK)
        button.tooltip("dark or light; at first as the system has it")
    ui.run_javascript(_RECALL_DARK)
    yield


_RECALL_DARK = 'if (localStorage.rollDark) Quasar.Dark.set(localStorage.rollDark === "true");'
# a document inside a page does not know that the page was turned dark
COLOR_FRAMES = (
    '() => document.querySelectorAll("iframe").forEach(frame => '
    'frame.contentDocument.documentElement.style.colorScheme = Quasar.Dark.isActive ? "dark" : "light")'
)
_TURN_DARK = (
    "() => { Quasar.Dark.set(!Quasar.Dark.isActive); localStorage.rollDark = Quasar.Dark.isActive; "
    f"({COLOR_FRAMES})(); }}"
)


def later(build: Callable[[], Awaitable[None]]) -> None:
    """Builds the rest of a page once the browser has its head, however long that takes. Where the page is left
    meanwhile, nothing more is built."""
    spinner = ui.spinner(size="lg").classes("self-center")

    async def begin() -> None:
        await build()
        spinner.delete()

    ui.timer(0.0, begin, once=True)


def age(seconds_since_1970: float) -> str:
    """Example: "12 s", "5 min", "3 h", "9 days"."""
    seconds = max(0, time.time() - seconds_since_1970)
    for limit, size, unit in ((100, 1, "s"), (6000, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def number(value: float | None) -> str:
    return "" if value is None else number_text(value)


def table_of(columns: Sequence[str], title: str = "") -> ui.table:
    """A plain table without pages; `fill` gives it rows."""
    column_specs = [{"name": name, "label": name, "field": name, "align": "left"} for name in columns]
    table = ui.table(columns=column_specs, rows=[], title=title or None).classes("q-mb-md lines")
    table.props('flat bordered dense wrap-cells :rows-per-page-options="[0]" hide-pagination hide-no-data')
    return table


def fill(table: ui.table, values: Sequence[Sequence[object]]) -> None:
    names = [column["name"] for column in table.columns]
    rows = [{name: visible(str(value)) for name, value in zip(names, row, strict=True)} for row in values]
    if rows != table.rows:
        table.rows = rows
