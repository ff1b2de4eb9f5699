"""Several runs in the same charts: curves, results, and what their configurations have otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from nicegui import ui

from roll.errors import ConfigError
from roll.report.about import about
from roll.report.charts import COLORS
from roll.report.figures import differing
from roll.report.run_files import RunFiles
from roll.run.display.view import duration, series
from roll.studio.live_run import LiveRun, State, newest, state_of
from roll.studio.pages.charts import Curve, CurvesPanel
from roll.studio.pages.frame import REFRESH_S, STATE_COLORS, fill, frame, later, number, table_of
from roll.studio.pages.runs import MOST_COMPARED, compare_address
from roll.studio.run_list import Glance, RunList, ran_s
from roll.utils.text import visible


def add(run_list: RunList) -> None:
    @ui.page("/compare")
    def page(runs: str = "") -> None:
        keys = list(dict.fromkeys(key for key in runs.split(",") if key))[:MOST_COMPARED]

        async def build() -> None:
            live = await asyncio.to_thread(_live_runs, run_list, keys)
            view = CompareView(run_list, live)
            ui.timer(REFRESH_S, view.refresh)

        with frame("Compare"):
            later(build)


def _live_runs(run_list: RunList, keys: Sequence[str]) -> dict[str, LiveRun]:
    """The runs that are there, by their key."""
    directories = run_list.directories(keys)
    runs: dict[str, LiveRun] = {}
    for key in filter(directories.__contains__, keys):
        with suppress(ConfigError):
            runs[key] = LiveRun(directories[key])
    return runs


def labels_of(runs: Sequence[RunFiles], names: Sequence[str]) -> list[str]:
    """Short texts that tell the runs of these names apart: the names, or else the parts of their folders in which they
    differ.

    Example: two runs "sort" in out/a/run and out/b/run are "sort (a/run)" and "sort (b/run)".
    """
    labels = []
    for run, name in zip(runs, names, strict=True):
        others = [o.directory.parts for o, its in zip(runs, names, strict=True) if its == name and o is not run]
        parts = run.directory.parts
        sizes = range(1, len(parts) + 1)
        count = next((size for size in sizes if all(other[-size:] != parts[-size:] for other in others)), len(parts))
        labels.append(name if names.count(name) == 1 else f"{name} ({'/'.join(parts[-count:])})")
    return [visible(label) for label in labels]


class CompareView:
    """Elements of the page, and what is written into them when a run has gone on."""

    def __init__(self, run_list: RunList, runs: dict[str, LiveRun]):
        self._run_list, self._runs = run_list, runs
        self._shown: tuple[RunFiles, ...] | None = None
        self._states: list[State] = []
        with ui.row().classes("items-center full-width").style("gap: 8px 14px"):
            ui.label("Compare").classes("text-h5")
            self._heads = ui.row().classes("items-center").style("gap: 6px 10px")
            ui.space()
            self._more = ui.select({}, label="add a run", on_change=self._add, with_input=True)
            self._more.props("dense outlined options-dense").style("width: 240px")
        with ui.tabs().props("dense align=left no-caps") as tabs:
            for name in ("Curves", "Results", "Configuration"):
                ui.tab(name)
        with ui.tab_panels(tabs, value="Curves", animated=False).classes("full-width"):
            with ui.tab_panel("Curves"):
                self._curves = CurvesPanel(run_list.notes)
            with ui.tab_panel("Results"):
                self._results = table_of(
                    ("run", "state", "steps", "duration", "first reward", "last reward", "best reward", "validation")
                )
            with ui.tab_panel("Configuration"):
                self._same = ui.label("Their configurations are equal.").classes("soft")
                self._config = table_of(("key", *(f"run {number}" for number in range(1, len(runs) + 1))))
                self._config.classes("mono keys")
        if len(runs) < 2:
            ui.label("Choose two or more runs: in the list of runs, or above.").classes("soft")

    async def refresh(self) -> None:
        states, glances = await asyncio.to_thread(self._read)
        self._offer(glances)
        files = tuple(live.files for live in self._runs.values())
        is_new = self._shown is None or any(new is not old for new, old in zip(files, self._shown, strict=True))
        if is_new or states != self._states:
            self._shown, self._states = files, states
            self._show(files, states)

    def _read(self) -> tuple[list[State], list[Glance]]:
        """Read what the runs have written since, and which others there are; one that was removed stays as it was."""
        for live in self._runs.values():
            with suppress(ConfigError):
                live.update()
        files = [live.files for live in self._runs.values()]
        states: list[State] = [state_of(run.starts, time.time() - newest(run)) for run in files]
        return states, self._run_list.glances()

    def _offer(self, glances: Sequence[Glance]) -> None:
        """Offer the other runs."""
        others = [glance for glance in glances if glance.key not in self._runs]
        options = {glance.key: visible(f"{glance.name} ({glance.directory})") for glance in others}
        if options != self._more.options:
            self._more.set_options(options)

    def _add(self) -> None:
        if self._more.value:
            ui.navigate.to(compare_address([*self._runs, self._more.value]))

    def _show(self, files: Sequence[RunFiles], states: Sequence[State]) -> None:
        names = self._run_list.notes.noted.names
        labels = labels_of(files, [names.get(key, run.name) for key, run in zip(self._runs, files, strict=True)])
        self._heads.clear()
        with self._heads:
            for key, label, color, state in zip(self._runs, labels, COLORS, states, strict=False):
                style = f"padding: 2px 8px; gap: 6px; border-left: 5px solid {color}"
                with ui.row().classes("items-center card").style(style):
                    ui.link(label, f"/run/{key}").style("color: inherit")
                    ui.badge(state, color=STATE_COLORS[state])
                    self._leave_out(key, label)
        curves = [Curve(label, color, run.rows) for label, color, run in zip(labels, COLORS, files, strict=False)]
        self._curves.show(files, curves)
        fill(self._results, [_result(*each) for each in zip(files, labels, states, strict=True)])
        differences = differing([run.config for run in files], [run.settings for run in files])
        self._same.set_visibility(not differences)
        self._config.set_visibility(bool(differences))
        columns = self._config.columns
        for column, label in zip(columns[1:], labels, strict=True):
            column["label"] = label
        self._config.columns = columns
        fill(self._config, [(key, *values) for key, values in differences])

    def _leave_out(self, key: str, label: str) -> None:
        """A button that opens the page without one of the runs."""
        address = compare_address([each for each in self._runs if each != key])
        button = ui.button(icon="close", on_click=lambda: ui.navigate.to(address))
        button.props("flat round dense size=xs").tooltip(f"leave out {label}")


def _result(run: RunFiles, label: str, state: State) -> tuple[str, ...]:
    rewards, validations = (series(run.rows, name) for name in run.curves)
    first, last, best = "", "", ""
    if rewards:
        first, last = number(rewards[0][1]), number(rewards[-1][1])
        choose = min if "loss" in run.curves[0] else max
        step, value = choose(rewards, key=lambda point: point[1])
        best = f"{number(value)} at step {step}"
    validation = f"{number(validations[0][1])} → {number(validations[-1][1])}" if validations else ""
    seconds = ran_s(run.starts, newest(run))
    origin = about(run).forked
    name = f"{label} ({visible(origin)})" if origin else label
    return name, state, str(max(run.steps, default=0)), duration(seconds), first, last, best, validation
