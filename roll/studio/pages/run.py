"""The page of a run: curves as they grow, times, failures, configuration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from nicegui import ui

from roll.errors import ConfigError
from roll.report.about import about
from roll.report.charts import COLORS
from roll.report.figures import failures, flat, overview, phase_table, prefix_table, role_table, symptom_table
from roll.report.run_files import LogLine, RunFiles, StepSpread
from roll.studio.launch import Launched, stop
from roll.studio.live_run import LiveRun, State, newest, process_of, state_of
from roll.studio.notes import Notes
from roll.studio.pages.charts import Curve, CurvesPanel, phase_options
from roll.studio.pages.frame import REFRESH_S, STATE_COLORS, age, fill, frame, later, table_of
from roll.studio.pages.log import LogPanel
from roll.studio.pages.runs import compare_address
from roll.studio.run_list import RunList
from roll.utils.secrets import redact
from roll.utils.text import visible

# A run that was started here and has not written anything yet.


def show_starting(key: str, launched: Launched, run_list: RunList) -> None:
    """Show the output of a starting run, and its own page as soon as there is one."""
    with ui.row().classes("items-center full-width"):
        ui.label(visible(launched.directory.name)).classes("text-h5")
        state = ui.badge("starting", color="blue-7")
        ui.space()
        button = ui.button("Stop", on_click=launched.stop, icon="stop", color="red-7").props("no-caps")
    label = ui.label().classes("mono text card full-width")

    async def refresh() -> None:
        label.set_text(visible(await asyncio.to_thread(launched.last_words)))
        code = launched.exit_code
        if await asyncio.to_thread(run_list.directory, key) is not None:
            ui.navigate.reload()
        elif code is not None:
            state.set_text(f"ended, exit code {code}")
            state.props("color=red-7")
            button.set_visibility(False)

    ui.timer(REFRESH_S, refresh)


_MOST_WARNINGS = 200
_IN_HEAD = ("model", "algorithm", "learning rate", "data", "started", "commit")


def add(run_list: RunList, launches: dict[str, Launched]) -> None:
    @ui.page("/run/{key}")
    def page(key: str) -> None:
        async def build() -> None:
            live = await asyncio.to_thread(_live_run, run_list, key)
            if live is not None:
                view = RunView(key, live, run_list.notes)
                ui.timer(REFRESH_S, view.refresh)
            elif key in launches:
                ui.page_title(f"{launches[key].directory.name} - roll studio")
                show_starting(key, launches[key], run_list)
            else:
                ui.label("There is no such run below the folders, or it was removed.")

        with frame("Run"):
            later(build)


def _live_run(run_list: RunList, key: str) -> LiveRun | None:
    directory = run_list.directory(key)
    try:
        return None if directory is None else LiveRun(directory)
    except ConfigError:
        return None


class RunView:
    """The elements of a page, and what is written into them when the run has gone on."""

    def __init__(self, key: str, live: LiveRun, notes: Notes):
        name = notes.noted.names.get(key, live.files.name)
        ui.page_title(f"{name} - roll studio")
        self._key, self._live, self._name = key, live, name
        self._shown: RunFiles | None = None
        self._spreads: Sequence[StepSpread] = ()
        with ui.row().classes("items-center full-width"):
            ui.label(visible(name)).classes("text-h5")
            self._state = ui.badge("")
            self._age = ui.label().classes("soft")
            ui.space()
            self._stop = ui.button("Stop", on_click=self._ask_to_stop, icon="stop", color="red-7")
            self._stop.props("no-caps dense flat").tooltip("Ctrl-C: the run saves its step and ends")
            if live.files.settings and not live.files.is_evaluation:
                again = ui.link("Run again", f"/new?run={key}")
                again.tooltip("the builder with what this run was given, to change and start")
            ui.link("Compare", compare_address([key])).tooltip("with other runs, in the same charts")
            ui.link("Rollouts", f"/run/{key}/rollouts")
            ui.link("Report", f"/report/{key}", new_tab=True).tooltip("one page, to keep or to mail")
        with ui.row().style("gap: 2px 20px"):
            for name, value in about(live.files).lines().items():
                if name in _IN_HEAD:
                    ui.label(visible(f"{name}: {value}")).classes("text-caption")
        ui.label(visible(str(live.files.directory))).classes("soft mono")
        with ui.tabs().props("dense align=left no-caps").classes("full-width") as self._tabs:
            for name in ("Curves", "Times", "Health", "Log", "Configuration"):
                ui.tab(name)
        with ui.tab_panels(self._tabs, value="Curves", animated=False).classes("full-width"):
            with ui.tab_panel("Curves"):
                self._facts = ui.row().classes("q-mb-sm").style("gap: 8px 24px")
                self._curves = CurvesPanel(notes)
            with ui.tab_panel("Times"):
                self._phases = ui.echart(phase_options(())).classes("card").style("height: 340px")
                with ui.row().classes("q-mt-md"):
                    self._phase_table = table_of(("phase", "in all", "share"))
                    self._role_table = table_of(("role", "busy"))
                self._starts = table_of(("started", "at step", "ended", "exit code", "cause"), "Starts")
            with ui.tab_panel("Health"):
                self._calm = ui.label("No rule applies, no sample failed, and the log has no warning.").classes("soft")
                self._symptoms = table_of(("what the rules see", "look for"), "What stands in its way")
                self._failures = table_of(("samples", "in", "steps", "cause"), "Samples that failed")
                self._prefixes = table_of(("cause", "share of requests"), "Broken prefixes")
                self._warnings = table_of(("when", "level", "times", "text"), "Warnings and errors of the log")
                self._tables = (self._symptoms, self._failures, self._prefixes, self._warnings)
            with ui.tab_panel("Log"):
                self._log = LogPanel()
            with ui.tab_panel("Configuration"):
                with ui.row().classes("items-center"):
                    search = ui.input(placeholder="search keys and values").props("dense outlined clearable")
                    self._all_keys = ui.switch("all keys, defaults included", on_change=self._show_config)
                self._config = table_of(("key", "value"))
                self._config.bind_filter_from(search, "value").classes("mono keys")

    async def refresh(self) -> None:
        try:
            state, written, warnings, spreads = await asyncio.to_thread(self._read)
        except ConfigError as error:  # it was removed, or its run.json cannot be read by now
            self._age.set_text(visible(str(error)))
            self._stop.set_visibility(False)
            return
        self._age.set_text(f"last written {age(written)} ago")
        self._state.set_text(state)
        self._state.props(f"color={STATE_COLORS[state]}")
        self._stop.set_visibility(self._is_going())
        fill(self._warnings, [(w.moment, w.level, w.count, w.text) for w in reversed(warnings[-_MOST_WARNINGS:])])
        self._show_calm()
        if self._tabs.value == "Log":
            await self._log.refresh(self._live.files)
        if self._live.files is not self._shown:
            self._show(self._live.files, spreads)

    def _read(self) -> tuple[State, float, Sequence[LogLine], Sequence[StepSpread]]:
        """Read the files: the state, when they were written, warnings, and how rewards are spread."""
        if self._live.update():
            self._spreads = self._live.spreads()
        written = newest(self._live.files)
        state = state_of(self._live.files.starts, time.time() - written)
        return state, written, self._live.warnings(), self._spreads

    def _is_going(self) -> bool:
        starts = self._live.files.starts
        return bool(starts) and process_of(starts[-1]) is not None

    def _ask_to_stop(self) -> None:
        with ui.dialog(value=True) as dialog, ui.card():
            ui.label("Stop this run? It saves its step first.")

            def go() -> None:
                dialog.close()
                if not stop(self._live.files.starts[-1]):
                    ui.notify("Its process is no longer there.")

            with ui.row():
                ui.button("Stop it", on_click=go, color="red-7").props("no-caps")
                ui.button("Let it run", on_click=dialog.close).props("flat no-caps")

    def _show(self, files: RunFiles, spreads: Sequence[StepSpread]) -> None:
        self._shown = files
        self._facts.clear()
        with self._facts:
            for name, value in overview(files):
                with ui.column().style("gap: 0"):
                    ui.label(visible(name)).classes("soft text-caption")
                    ui.label(visible(value))
        self._curves.show([files], [Curve(self._name, COLORS[0], files.rows)])
        self._phases.options.update(phase_options(files.rows))
        self._phases.update()
        fill(self._phase_table, phase_table(files.rows))
        fill(self._role_table, role_table(files.rows))
        fill(
            self._starts,
            [
                (s.started, s.steps_done, s.ended or "", "" if s.exit_code is None else s.exit_code, s.cause)
                for s in files.starts
            ],
        )
        fill(self._symptoms, [] if files.is_evaluation else symptom_table(files))
        fill(
            self._failures,
            [(f.count, f.kind, f"{f.first_step} to {f.last_step}", f.cause) for f in failures(spreads)],
        )
        fill(self._prefixes, prefix_table(files.rows))
        self._show_calm()
        self._show_config()

    def _show_calm(self) -> None:
        for table in self._tables:
            table.set_visibility(bool(table.rows))
        self._calm.set_visibility(not any(table.rows for table in self._tables))

    def _show_config(self) -> None:
        files = self._live.files
        config = files.config if self._all_keys.value else files.settings or files.config
        fill(self._config, list(flat(redact(config)).items()))
