"""The page of a run: curves as they grow, times, failures, configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from nicegui import ui

from roll.errors import ConfigError
from roll.report.charts import COLORS, thinned
from roll.report.command import main_metrics
from roll.report.figures import failures, flat, overview, phase_table, role_table
from roll.report.run_files import LogLine, RunFiles, StepSpread
from roll.run.display.curves import binned_phases, smoothed
from roll.run.display.view import Rows, series
from roll.studio.disk_reads import Unanswered, Waits
from roll.studio.launch import Launched, stop
from roll.studio.live_run import LiveRun, State, newest, process_of, state_of
from roll.studio.pages.frame import REFRESH_S, STATE_COLORS, age, frame, later
from roll.studio.run_list import RunList
from roll.utils.text import visible

# Curves and times as options of ECharts. Its tips are drawn, not made of HTML: names may hold any text.

_FEW_POINTS = 20
_DIGITS = 5
_EARLIER = "#b0b0b0"


def line_options(rows: Rows, name: str, earlier: Mapping[str, Rows] = MappingProxyType({})) -> dict[str, Any]:
    """A metric: each step in a pale colour where there are many, and smoothed in a full one. `earlier`: by its name,
    what a start wrote that was begun anew since, in grey."""
    steps, values = thinned(series(rows, name))
    points = _points(steps, values)
    if len(steps) < _FEW_POINTS:
        lines = [_line(name, points, 1.6, 1.0) | {"showSymbol": True, "symbolSize": 5}]
    else:
        means = smoothed(values, max(5, len(steps) // 20 * 2 + 1))
        lines = [_line(name, points, 1.0, 0.3), _line("smoothed", _points(steps, means), 2.0, 1.0)]
    for start, others in earlier.items():
        if before := series(others, name):
            lines.append(_line(start, _points(*thinned(before)), 1.2, 1.0, _EARLIER))
    return _options(visible(name), 48) | {"series": lines}


def phase_options(rows: Rows) -> dict[str, Any]:
    """Seconds per step, by phase, stacked."""
    steps, phases = binned_phases(rows)
    bars = [
        {
            "type": "bar",
            "name": visible(name),
            "stack": "phases",
            "barCategoryGap": "0%",
            "data": [round(value, _DIGITS) for value in seconds],
            "itemStyle": {"color": COLORS[number % len(COLORS)]},
        }
        for number, (name, seconds) in enumerate(phases.items())
    ]
    options = _options("seconds per step, by phase", 64)
    options["xAxis"] = {"type": "category", "data": [f"{step:g}" for step in steps], "name": "step"} | _BELOW
    options["legend"] = {"bottom": 0, "type": "scroll", "itemHeight": 10}
    return options | {"series": bars}


_BELOW = {"nameLocation": "middle", "nameGap": 24}


def _options(title: str, bottom: int) -> dict[str, Any]:
    return {
        "animation": False,
        "title": {"text": title, "textStyle": {"fontSize": 13, "fontWeight": "normal"}, "left": 4, "top": 2},
        "grid": {"left": 12, "right": 24, "top": 36, "bottom": bottom - 24, "containLabel": True},
        "tooltip": {"trigger": "axis", "renderMode": "richText"},
        "xAxis": {"type": "value", "min": "dataMin", "max": "dataMax", "minInterval": 1, "name": "step"} | _BELOW,
        "yAxis": {"type": "value", "scale": True},
    }


def _line(name: str, points: list[list[float]], width: float, opacity: float, color: str = COLORS[0]) -> dict[str, Any]:
    style = {"color": color, "opacity": opacity}
    line = {"type": "line", "name": visible(name), "data": points, "showSymbol": False, "itemStyle": style}
    return line | {"lineStyle": style | {"width": width}}


def _points(steps: Sequence[float], values: Sequence[float]) -> list[list[float]]:
    return [[step, float(f"{value:.{_DIGITS}g}")] for step, value in zip(steps, values, strict=True)]


# A run that was started here and has not written anything yet.


def show_starting(key: str, launched: Launched, run_list: RunList) -> None:
    """Show the output of a starting run, and its own page as soon as there is one."""
    with ui.row().classes("items-center full-width"):
        ui.label(visible(launched.directory.name)).classes("text-h5")
        state = ui.badge("starting", color="blue-7")
        ui.space()
        button = ui.button("Stop", on_click=launched.stop, icon="stop", color="red-7").props("no-caps")
    label = ui.label().classes("mono text card full-width")

    waits = Waits()

    async def refresh() -> None:
        with suppress(Unanswered):
            await show()

    async def show() -> None:
        label.set_text(visible(await waits.wait("words", launched.last_words)))
        code = launched.exit_code
        if await waits.wait("directory", lambda: run_list.directory(key)) is not None:
            ui.navigate.reload()
        elif code is not None:
            state.set_text(f"ended, exit code {code}")
            state.props("color=red-7")
            button.set_visibility(False)

    ui.timer(REFRESH_S, refresh)


_MOST_WARNINGS = 200


def add(run_list: RunList, launches: dict[str, Launched]) -> None:
    waits = Waits()

    @ui.page("/run/{key}")
    def page(key: str) -> None:
        async def build() -> None:
            live = await waits.wait(("run", key, ui.context.client.id), lambda: _live_run(run_list, key))
            if live is not None:
                ui.page_title(f"{live.files.name} - roll studio")
                ui.timer(REFRESH_S, RunView(key, live).refresh)
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

    def __init__(self, key: str, live: LiveRun):
        self._live, self._waits = live, Waits()
        self._shown: RunFiles | None = None
        self._spreads: Sequence[StepSpread] = ()
        self._earlier: dict[str, Rows] = {}
        self._charts: dict[str, ui.echart] = {}
        with ui.row().classes("items-center full-width"):
            ui.label(visible(live.files.name)).classes("text-h5")
            self._state = ui.badge("")
            self._age = ui.label().classes("soft")
            ui.space()
            self._stop = ui.button("Stop", on_click=self._ask_to_stop, icon="stop", color="red-7")
            self._stop.props("no-caps dense flat").tooltip("Ctrl-C: the run saves its step and ends")
            ui.link("Rollouts", f"/run/{key}/rollouts")
            ui.link("Report", f"/report/{key}", new_tab=True).tooltip("one page, to keep or to mail")
        ui.label(visible(str(live.files.directory))).classes("soft mono")
        with ui.tabs().props("dense align=left no-caps") as tabs:
            for name in ("Curves", "Times", "Failures", "Configuration"):
                ui.tab(name)
        with ui.tab_panels(tabs, value="Curves", animated=False).classes("full-width"):
            with ui.tab_panel("Curves"):
                self._facts = ui.row().classes("q-mb-sm").style("gap: 8px 24px")
                self._choice = ui.select([], multiple=True, with_input=True, label="further metrics")
                self._choice.props("use-chips dense outlined").classes("q-mb-sm").style("min-width: 420px")
                self._choice.on_value_change(self._draw)
                self._grid = ui.element("div").classes("charts")
            with ui.tab_panel("Times"):
                self._phases = ui.echart(phase_options(())).classes("card").style("height: 340px")
                with ui.row().classes("q-mt-md"):
                    self._phase_table = _table(("phase", "in all", "share"))
                    self._role_table = _table(("role", "busy"))
            with ui.tab_panel("Failures"):
                self._starts = _table(("started", "at step", "ended", "exit code", "cause"), "Starts")
                self._failures = _table(("attempts", "in", "steps", "cause"), "Attempts that failed")
                self._warnings = _table(("when", "level", "times", "text"), "Warnings and errors of the log")
            with ui.tab_panel("Configuration"):
                search = ui.input(placeholder="search keys and values").props("dense outlined clearable")
                self._config = _table(("key", "value"))
                self._config.bind_filter_from(search, "value").classes("mono")

    async def refresh(self) -> None:
        try:
            state, written, warnings, spreads = await self._waits.wait("look", self._read)
        except Unanswered as error:
            self._age.set_text(str(error))
            return
        except ConfigError as error:  # it was removed, or its run.json cannot be read by now
            self._age.set_text(visible(str(error)))
            self._stop.set_visibility(False)
            return
        self._age.set_text(f"last written {age(written)} ago")
        self._state.set_text(state)
        self._state.props(f"color={STATE_COLORS[state]}")
        self._stop.set_visibility(self._is_going())
        _fill(self._warnings, [(w.moment, w.level, w.count, w.text) for w in reversed(warnings[-_MOST_WARNINGS:])])
        if self._live.files is not self._shown:
            self._show(self._live.files, spreads)

    def _read(self) -> tuple[State, float, Sequence[LogLine], Sequence[StepSpread]]:
        """Read the files: the state, when they were written, warnings, and how rewards are spread."""
        if self._live.update():
            self._spreads = self._live.spreads()
            self._earlier = {start.name.rpartition(", ")[2]: start.rows for start in self._live.earlier()}
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
        names = sorted({name for _, metrics in files.rows for name in metrics})
        self._choice.set_options(names, value=self._choice.value)
        self._draw()
        self._phases.options.update(phase_options(files.rows))
        self._phases.update()
        _fill(self._phase_table, phase_table(files.rows))
        _fill(self._role_table, role_table(files.rows))
        _fill(
            self._starts,
            [
                (s.started, s.steps_done, s.ended or "", "" if s.exit_code is None else s.exit_code, s.cause)
                for s in files.starts
            ],
        )
        _fill(
            self._failures,
            [(f.count, f.kind, f"{f.first_step} to {f.last_step}", f.cause) for f in failures(spreads)],
        )
        _fill(self._config, list(flat(files.config).items()))

    def _draw(self) -> None:
        """The charts of what is shown, each made once."""
        rows = self._live.files.rows
        names = {name for _, metrics in rows for name in metrics}
        chosen: list[str] = self._choice.value or []
        shown = list(dict.fromkeys([*main_metrics([self._live.files], names), *chosen]))
        for name in [name for name in self._charts if name not in shown]:
            self._charts.pop(name).delete()
        for name in shown:
            if name in self._charts:
                self._charts[name].options.update(line_options(rows, name, self._earlier))
                self._charts[name].update()
                continue
            with self._grid:
                self._charts[name] = (
                    ui.echart(line_options(rows, name, self._earlier)).classes("card").style("height: 240px")
                )


def _table(columns: Sequence[str], title: str = "") -> ui.table:
    column_specs = [{"name": name, "label": name, "field": name, "align": "left"} for name in columns]
    table = ui.table(columns=column_specs, rows=[], title=title or None).classes("q-mb-md")
    table.props('flat bordered dense wrap-cells :rows-per-page-options="[0]" hide-pagination')
    return table


def _fill(table: ui.table, values: Sequence[Sequence[object]]) -> None:
    names = [column["name"] for column in table.columns]
    rows = [{name: visible(str(value)) for name, value in zip(names, row, strict=True)} for row in values]
    if rows != table.rows:
        table.rows = rows
