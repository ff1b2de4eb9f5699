"""Curves and times as options of ECharts, and the controls of how they are drawn. Tips are drawn, not made of HTML:
names may hold any text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from nicegui import ui

from roll.report.charts import RAW_OPACITY, SPAN, axis_range, binned_phases, drawn, is_noisy, limit_of
from roll.report.command import main_metrics
from roll.report.palette import phase_colors
from roll.report.run_files import RunFiles
from roll.report.titles import phase_title, title_of
from roll.run.display.view import Rows, series
from roll.studio.notes import Notes
from roll.utils.text import visible
from roll.utils.timing import phase_seconds

Axis = Literal["step", "time", "tokens"]
_AXIS_NAMES: dict[Axis, str] = {"step": "step", "time": "minutes in steps", "tokens": "tokens, in millions"}
_TOKENS = ("rollout/num_tokens", "train/trained_tokens")  # of a step, by kind of run
PINNED = "Pinned"
_FEW_POINTS = 20
_DIGITS = 5
_GREY = "#8a8f98"  # readable on white and on black
_GRID = "rgba(128, 128, 128, .22)"
_LIMIT = {
    "silent": True, "symbol": "none", "lineStyle": {"color": _GREY, "type": "dashed"},
    "label": {"formatter": "{b}", "position": "insideEndBottom", "color": _GREY},
}  # fmt: skip


@dataclass(frozen=True)
class CurveStyle:
    """How curves are drawn. `span`: steps of the mean; 1 draws none. `axis`: what runs to the right. `is_log`: the
    values on a logarithmic axis, those above 0 alone."""

    span: int = SPAN
    axis: Axis = "step"
    is_log: bool = False


@dataclass(frozen=True)
class Curve:
    """The metrics of one run."""

    label: str
    color: str
    rows: Rows


def line_options(
    curves: Sequence[Curve], name: str, style: CurveStyle, configs: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """A metric of some runs: each step in a pale colour where there are many, and its mean in a full one. `configs`: of
    the runs, for the limit of what is shown."""
    measured = [
        [(step, value) for step, value in series(curve.rows, name) if value > 0 or not style.is_log] for curve in curves
    ]
    places = [positions(curve.rows, style.axis) for curve in curves]
    span = style.span if is_noisy(name) else 1
    lines = [line for each in zip(curves, drawn(measured, span, places), strict=True) for line in _lines(*each)]
    values = [value for points in measured for _, value in points]
    ends = [place[points[at][0]] for place, points in zip(places, measured, strict=True) if points for at in (0, -1)]
    options = _options(visible(title_of(name)), 48)
    options["xAxis"] |= {"name": _AXIS_NAMES[style.axis], "minInterval": 1 if style.axis == "step" else 0}
    options["xAxis"] |= {"min": min(ends), "max": max(ends)} if ends else {}
    limit = limit_of(name, configs, values)
    if style.is_log:
        options["yAxis"] |= {"type": "log"}
    elif bounds := axis_range(name, values, limit):
        options["yAxis"] |= dict(zip(("min", "max"), bounds, strict=True))
    if limit is not None and lines:
        lines[0] |= {"markLine": _LIMIT | {"data": [{"yAxis": limit, "name": f"limit {limit:g}"}]}}
    return options | {"series": lines}


def has_axis(curves: Sequence[Curve], axis: Axis) -> bool:
    """Whether some of the runs measured what the axis shows."""
    return axis == "step" or any(position for curve in curves for position in positions(curve.rows, axis).values())


def positions(rows: Rows, axis: Axis) -> dict[int, float]:
    """Place of each step on an axis: its number; the minutes that steps have taken until its end, or the millions of
    tokens, prompts included, that they were about.

    Example: rows 1 and 2 of 30 s each lie at 0.5 and 1.0 on "time".
    """
    if axis == "step":
        return {step: float(step) for step, _ in rows}
    total, places = 0.0, {}
    for step, metrics in rows:
        total += _seconds(metrics) / 60 if axis == "time" else _num_tokens(metrics) / 1e6
        places[step] = total
    return places


def _seconds(metrics: Any) -> float:
    return metrics.get("time/step_s") or sum(phase_seconds(metrics).values())


def _num_tokens(metrics: Any) -> float:
    return next((metrics[name] for name in _TOKENS if name in metrics), 0.0)


def _lines(curve: Curve, columns: tuple[list[float], list[float], list[float]]) -> list[dict[str, Any]]:
    steps, values, means = columns
    if not steps:
        return []
    points = _points(steps, values)
    if not means:
        dots = {"showSymbol": len(steps) < _FEW_POINTS, "symbolSize": 5}
        return [_line(curve, points, 1.6, 1.0) | dots]
    return [_line(curve, points, 1.0, RAW_OPACITY), _line(curve, _points(steps, means), 2.0, 1.0)]


def phase_options(rows: Rows) -> dict[str, Any]:
    """Seconds per step, by phase, stacked."""
    steps, phases = binned_phases(rows)
    colors = phase_colors(phases)
    bars = [
        {
            "type": "bar",
            "name": visible(phase_title(name)),
            "stack": "phases",
            "barCategoryGap": "0%",
            "data": [round(value, _DIGITS) for value in seconds],
            "itemStyle": {"color": colors[name]},
        }
        for name, seconds in phases.items()
    ]
    options = _options("seconds per step, by phase", 64)
    options["xAxis"] |= {"type": "category", "data": [f"{step:g}" for step in steps]}
    options["legend"] = {"bottom": 0, "type": "scroll", "itemHeight": 10, "textStyle": {"color": _GREY}}
    return options | {"series": bars}


def _options(title: str, bottom: int) -> dict[str, Any]:
    grey = {"axisLabel": {"color": _GREY}, "splitLine": {"lineStyle": {"color": _GRID}}}
    axis = {"nameLocation": "middle", "nameGap": 24, "nameTextStyle": {"color": _GREY}} | grey
    return {
        "animation": False,
        "title": {
            "text": title,
            "textStyle": {"fontSize": 13, "fontWeight": "normal", "color": _GREY},
            "left": 4,
            "top": 2,
        },
        "grid": {"left": 12, "right": 24, "top": 36, "bottom": bottom - 24, "containLabel": True},
        "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True},
        "toolbox": {
            "feature": {"dataZoom": {"yAxisIndex": False, "filterMode": "none"}, "restore": {}},
            "itemSize": 11,
            "right": 6,
            "iconStyle": {"borderColor": _GREY},
        },
        "xAxis": {"type": "value", "min": "dataMin", "max": "dataMax", "minInterval": 1, "name": "step"} | axis,
        "yAxis": {"type": "value", "scale": True} | grey,
    }


def _line(curve: Curve, points: list[list[float]], width: float, opacity: float) -> dict[str, Any]:
    style = {"color": curve.color, "opacity": opacity}
    line = {"type": "line", "name": visible(curve.label), "data": points, "showSymbol": False, "itemStyle": style}
    return line | {"lineStyle": style | {"width": width}}


def _points(steps: Sequence[float], values: Sequence[float]) -> list[list[float]]:
    return [[float(f"{step:.7g}"), float(f"{value:.{_DIGITS}g}")] for step, value in zip(steps, values, strict=True)]


class ChartControls:
    """Smoothing, what runs to the right, and a logarithmic axis, for all charts of a page."""

    def __init__(self, changed: Callable[[], None]):
        with ui.row().classes("items-center").style("gap: 6px 18px"):
            ui.label("smoothing").classes("soft")
            self._span = ui.slider(min=1, max=100, value=SPAN, on_change=changed).style("width: 150px").props("dense")
            self._span_text = ui.label().classes("soft").style("min-width: 70px")
            self._span_text.bind_text_from(self._span, "value", _span_text)
            self._axis = ui.toggle(list(get_args(Axis)), value="step", on_change=changed)
            self._axis.props('dense no-caps unelevated size=sm padding="2px 10px"')
            self._is_log = ui.checkbox("log axis", on_change=changed).props("dense")

    @property
    def style(self) -> CurveStyle:
        return CurveStyle(int(self._span.value or 1), self._axis.value, bool(self._is_log.value))


def _span_text(span: float | None) -> str:
    return "none" if int(span or 1) == 1 else f"{int(span or 1)} steps"


class ChartGroups:
    """Charts by metric below the titles of their groups, each made once and then changed. `pin` is called with the
    metric whose pin was pressed."""

    def __init__(self, pin: Callable[[str], None]) -> None:
        self._pin = pin
        self._charts: dict[tuple[str, str], ui.echart] = {}
        self._groups: dict[str, tuple[ui.label, ui.element]] = {}
        self._place = ui.column().classes("full-width").style("gap: 4px")

    def draw(self, groups: Mapping[str, Mapping[str, dict[str, Any]]]) -> None:
        """Show exactly these, in their order where they are new."""
        shown = {(title, name) for title, group in groups.items() for name in group}
        for each in self._charts.keys() - shown:
            chart = self._charts.pop(each)
            assert chart.parent_slot is not None
            chart.parent_slot.parent.delete()
        for title, group in groups.items():
            if title not in self._groups:
                with self._place:
                    self._groups[title] = ui.label(title).classes("soft q-mt-sm"), ui.element("div").classes("charts")
            for name, options in group.items():
                if chart := self._charts.get((title, name)):
                    chart.options.clear()
                    chart.options.update(options)
                    chart.update()
                    continue
                with self._groups[title][1], ui.element("div").classes("card").style("position: relative"):
                    self._charts[title, name] = ui.echart(options).style("height: 216px")
                    button = ui.button(icon="push_pin", on_click=partial(self._pin, name)).classes("pin")
                    button.props(
                        f"flat round dense size=xs aria-label=pin color={'primary' if title == PINNED else 'grey'}"
                    )
        for title, (label, _) in self._groups.items():
            label.set_visibility(bool(groups.get(title)))


class CurvesPanel:
    """The curves of some runs, with what chooses and draws them. Pinned charts come first, on every page."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._runs: Sequence[RunFiles] = ()
        self._curves: Sequence[Curve] = ()
        with ui.row().classes("items-center full-width q-mb-sm"):
            self._controls = ChartControls(self._draw)
            self._choice = ui.select([], with_input=True, label="pin a metric", on_change=self._choose)
            self._choice.props("dense outlined").style("min-width: 260px")
        self._note = ui.label().classes("soft")
        self._grid = ChartGroups(self._pin)

    def show(self, runs: Sequence[RunFiles], curves: Sequence[Curve]) -> None:
        self._runs, self._curves = runs, curves
        self._choice.set_options(self._names())
        self._draw()

    def _choose(self) -> None:
        if self._choice.value:
            self._pin(self._choice.value)
            self._choice.set_value(None)

    def _pin(self, name: str) -> None:
        """Pins a metric, or takes its pin away."""
        pinned = self._notes.noted.pinned
        self._notes.choose(pinned=[each for each in pinned if each != name] if name in pinned else [*pinned, name])
        self._draw()

    def _names(self) -> list[str]:
        return sorted({name for run in self._runs for _, metrics in run.rows for name in metrics})

    def _draw(self) -> None:
        style, names = self._controls.style, self._names()
        missing = not has_axis(self._curves, style.axis)
        whose = "The run has not" if len(self._runs) == 1 else "No run has"
        self._note.set_text(f"{whose} measured its {style.axis}." if missing and self._runs else "")
        pinned = [name for name in self._notes.noted.pinned if name in names]
        groups = {PINNED: pinned} | {
            title: [name for name in group if name not in pinned]
            for title, group in main_metrics(self._runs, names).items()
        }
        configs = [run.config for run in self._runs]
        self._grid.draw(
            {
                title: {name: line_options(self._curves, name, style, configs) for name in group}
                for title, group in ({} if missing else groups).items()
            }
        )
