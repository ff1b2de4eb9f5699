"""Frame of every page: its head, the links to the others, and the style."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from nicegui import ui

from roll.studio.disk_reads import Unanswered
from roll.studio.live_run import State

REFRESH_S = 2.0
STATE_COLORS: dict[State, str] = {
    "running": "blue-7", "finished": "green-7", "stopped": "orange-8", "failed": "red-7", "killed": "red-4",
    "unknown": "grey-6", "broken": "red-10",
}  # fmt: skip
_PAGES = {"Runs": "/", "New run": "/new"}
_STYLE = """
body { background: #f7f8fa; color: #1c1e21; }
.nicegui-content { padding: 20px 28px 40px; gap: 14px; max-width: 1500px; margin: 0 auto; }
.card { background: #fff; border: 1px solid #e2e2e6; border-radius: 8px; padding: 12px 16px; }
.soft { color: #6b6f76; } .mono { font: 12px/1.55 ui-monospace, monospace; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(380px, 1fr)); gap: 12px; width: 100%; }
.q-table td, .q-table th { font-size: 13px; } .q-tab-panel { padding: 12px 0; } .q-tab-panels { background: none; }
"""


@contextmanager
def frame(title: str, active: str = "") -> Iterator[None]:
    """The head with what comes below it."""
    ui.page_title(f"{title} - roll studio")
    ui.colors(primary="#2f55b8")
    ui.add_css(_STYLE)
    with ui.header().classes("items-center q-py-sm").style("background: #1f2a44"):
        ui.label("roll studio").classes("text-subtitle1 text-weight-medium q-mr-lg")
        for name, address in _PAGES.items():
            weight = "text-weight-bold" if name == active else ""
            ui.link(name, address).classes(f"text-white q-mr-md {weight}").style("text-decoration: none")
    yield


def later(build: Callable[[], Awaitable[None]]) -> None:
    """Builds the rest of a page once the browser has its head, however long that takes. Where the page is left
    meanwhile, nothing more is built."""
    spinner = ui.spinner(size="lg").classes("self-center")

    async def begin() -> None:
        try:
            await build()
        except Unanswered as error:
            ui.label(str(error))
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
    return "" if value is None else f"{value:.4g}"
