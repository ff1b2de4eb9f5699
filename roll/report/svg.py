"""Small charts as SVG, each in a data URI: an image runs no script, whatever its texts are.

Colours of text and grid follow the reader's scheme, light or dark; the ground is transparent."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from roll.report.titles import number_text
from roll.utils.text import middle_left_out, visible

_FONT, _LINE, _LETTER = 11, 15, 6.2  # pixels: size, distance of lines, mean width of a character
_AT_LEFT, _AT_RIGHT, _AT_BOTTOM, _AT_TOP = 46, 10, 30, 8  # free pixels around what is drawn
_LONGEST_LABEL = 40
_TICKS = 4
_LARGEST = 1e100  # of what is drawn, either side of 0
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#50545b}.g{stroke:#8a8f9840;fill:none}.a{stroke:#8a8f98;fill:none}"
    "@media(prefers-color-scheme:dark){text{fill:#b4b8bf}}"
)


@dataclass
class Plot:
    """A chart in the making, in the units of what it shows. `x`, `y`: the ranges; what is beyond is cut off."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 360
    height: int = 190
    x_label: str = "step"
    whole_x: bool = True  # x counts something, as steps do
    _shapes: list[str] = field(default_factory=list, init=False)
    _legend: list[tuple[str, str]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.x, self.y = _range(*self.x), _range(*self.y)

    def line(
        self, xs: Sequence[float], ys: Sequence[float], color: str, width: float = 1.6, opacity: float = 1
    ) -> None:
        points = " ".join(f"{self._across(x):.1f},{self._down(y):.1f}" for x, y in zip(xs, ys, strict=True))
        look = f'stroke="{color}" stroke-width="{width}" stroke-opacity="{opacity}"'
        self._shapes.append(f'<polyline points="{points}" fill="none" stroke-linejoin="round" {look}/>')

    def limit(self, y: float) -> None:
        """A dashed line across."""
        where = f"M{_AT_LEFT} {self._down(y):.1f}H{self.width - _AT_RIGHT}"
        self._shapes.append(f'<path class="a" stroke-dasharray="5 4" d="{where}"/>')

    def dots(self, xs: Sequence[float], ys: Sequence[float], color: str) -> None:
        self._shapes += [
            f'<circle cx="{self._across(x):.1f}" cy="{self._down(y):.1f}" r="2.2" fill="{color}"/>'
            for x, y in zip(xs, ys, strict=True)
        ]

    def band(
        self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], color: str, opacity: float
    ) -> None:
        """The area between two lines."""
        around = [*zip(xs, low, strict=True), *reversed(list(zip(xs, high, strict=True)))]
        points = " ".join(f"{self._across(x):.1f},{self._down(y):.1f}" for x, y in around)
        self._shapes.append(f'<polygon points="{points}" fill="{color}" fill-opacity="{opacity}"/>')

    def bars(self, edges: Sequence[float], low: Sequence[float], high: Sequence[float], color: str) -> None:
        """Bars side by side, each from one edge to the next and from `low` to `high`."""
        parts = [
            f"M{self._across(left):.1f} {self._down(bottom):.1f}V{self._down(top):.1f}"
            f"H{self._across(right):.1f}V{self._down(bottom):.1f}z"
            for (left, right), bottom, top in zip(pairwise(edges), low, high, strict=True)
            if top > bottom
        ]
        self._shapes.append(f'<path d="{"".join(parts)}" fill="{color}"/>')

    def name(self, label: str, color: str) -> None:
        """Adds a line to the legend."""
        self._legend.append((visible(middle_left_out(label, _LONGEST_LABEL)).replace("\n", " "), color))

    def uri(self) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg().encode("utf-8", "replace")).decode("ascii")

    def svg(self) -> str:
        legend, rows = self._placed_legend()
        height = self.height + rows * _LINE
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height}"><style>{_STYLE}</style>'
            f'<clipPath id="c"><rect x="{_AT_LEFT}" y="{_AT_TOP - 3}" width="{self.width - _AT_LEFT - _AT_RIGHT}" '
            f'height="{self.height - _AT_BOTTOM - _AT_TOP + 5}"/></clipPath>'
            f'{self._axes()}<g clip-path="url(#c)">{"".join(self._shapes)}</g>{legend}</svg>'
        )

    def _across(self, x: float) -> float:
        return _AT_LEFT + (x - self.x[0]) / (self.x[1] - self.x[0]) * (self.width - _AT_LEFT - _AT_RIGHT)

    def _down(self, y: float) -> float:
        share = (y - self.y[0]) / (self.y[1] - self.y[0])
        return self.height - _AT_BOTTOM - share * (self.height - _AT_BOTTOM - _AT_TOP)

    def _axes(self) -> str:
        floor, right = self.height - _AT_BOTTOM, self.width - _AT_RIGHT
        parts = []
        for value, text in _ticks(*self.y, False):
            y = self._down(value)
            parts.append(f'<path class="g" d="M{_AT_LEFT} {y:.1f}H{right}"/>')
            parts.append(f'<text x="{_AT_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
        for value, text in _ticks(*self.x, self.whole_x):
            x = self._across(value)
            parts.append(f'<text x="{x:.1f}" y="{floor + 14}" text-anchor="middle">{escape(text)}</text>')
        parts.append(f'<path class="a" d="M{_AT_LEFT} {floor}H{right}"/>')
        middle = (_AT_LEFT + right) / 2
        parts.append(f'<text x="{middle:.0f}" y="{floor + 27}" text-anchor="middle">{escape(self.x_label)}</text>')
        return "".join(parts)

    def _placed_legend(self) -> tuple[str, int]:
        """The legend below the chart, and how many lines it takes."""
        parts, x, row = [], float(_AT_LEFT), 0
        for label, color in self._legend:
            needed = 22 + len(label) * _LETTER
            if x > _AT_LEFT and x + needed > self.width:
                x, row = float(_AT_LEFT), row + 1
            y = self.height + row * _LINE + _FONT
            parts.append(f'<rect x="{x:.0f}" y="{y - 8}" width="9" height="9" rx="2" fill="{color}"/>')
            parts.append(f'<text x="{x + 13:.0f}" y="{y}">{escape(label)}</text>')
            x += needed
        return "".join(parts), row + 1 if parts else 0


def _range(low: float, high: float) -> tuple[float, float]:
    """Return a range that can be drawn: what somebody edited in a file may have none."""
    if not math.isfinite(high - low):
        return 0.0, 1.0
    if high - low > max(1 / _LARGEST, 1e-12 * abs(high)):
        return low, high
    room = max(0.5, 1e-6 * abs(low))
    return low - room, low + room


def padded(values: Sequence[float]) -> tuple[float, float]:
    """A range around the values with some room above and below. Example: of 0 and 1, -0.05 to 1.05."""
    low, high = max(min(values), -_LARGEST), min(max(values), _LARGEST)
    room = 0.05 * (high - low)
    if room < 1e-9 * abs(high) or room < 1 / _LARGEST:  # one value, but for the last digits
        room = abs(high) * 0.1 if abs(high) > 1 / _LARGEST else 1.0
    return low - room, high + room


def _ticks(low: float, high: float, is_whole: bool) -> list[tuple[float, str]]:
    """Round numbers within a range, and how they are written. Example: 0 to 1 -> 0, 0.25, 0.5, 0.75, 1."""
    size = 10.0 ** math.floor(math.log10((high - low) / _TICKS))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if (high - low) / (factor * size) <= _TICKS + 0.5)
    if is_whole:
        step = max(1.0, round(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [number * step for number in range(first, last + 1)]
    largest = max(map(abs, values), default=0.0)
    if largest >= 10_000 or step < 0.001:
        return [(value, "0" if not value else _short(value)) for value in values]
    places = max(0, next(places for places in range(6) if abs(round(step, places) - step) < step * 1e-6))
    return [(value, f"{value:.{places}f}") for value in values]


def _short(value: float) -> str:
    """Example: 12500 -> "12.5k", 2e6 -> "2M", 1e-6 -> "1e-6"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}" if abs(value) < 1e3 * size else number_text(value)
    return number_text(value)
