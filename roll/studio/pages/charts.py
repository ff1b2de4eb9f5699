"""Curves and times as options of ECharts. Its tips are drawn, not made of HTML: names may hold any text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from roll.report.charts import COLORS, thinned
from roll.run.display.curves import binned_phases, smoothed
from roll.run.display.view import Rows, series
from roll.utils.text import visible

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
