"""A run that was started here and has not written anything yet."""

from __future__ import annotations

from contextlib import suppress

from nicegui import ui

from roll.studio.launch import Launched
from roll.studio.pages.frame import REFRESH_S
from roll.studio.run_list import RunList
from roll.studio.waits import Unanswered, Waits
from roll.utils.text import visible


def show_starting(key: str, launched: Launched, found: RunList) -> None:
    """What it has printed; its own page as soon as there is one."""
    with ui.row().classes("items-center full-width"):
        ui.label(visible(launched.directory.name)).classes("text-h5")
        state = ui.badge("starting", color="blue-7")
        ui.space()
        button = ui.button("Stop", on_click=launched.stop, icon="stop", color="red-7").props("no-caps")
    words = ui.label().classes("mono text card full-width")

    waits = Waits()

    async def refresh() -> None:
        with suppress(Unanswered):
            await show()

    async def show() -> None:
        words.set_text(visible(await waits.wait("words", launched.last_words)))
        code = launched.exit_code
        if await waits.wait("directory", lambda: found.directory(key)) is not None:
            ui.navigate.reload()
        elif code is not None:
            state.set_text(f"ended, exit code {code}")
            state.props("color=red-7")
            button.set_visibility(False)

    ui.timer(REFRESH_S, refresh)
