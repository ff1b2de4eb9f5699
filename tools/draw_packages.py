"""Draws docs/images/packages.svg: the packages of roll/ by layer, from the table that the layout tests hold.

Run it as `python -m tools.draw_packages`.
"""

from collections import defaultdict
from html import escape
from pathlib import Path

from tests.layout.layers import PACKAGES

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "packages.svg"
WIDTH, ROW, GAP = 960, 52, 8  # in pixels
LABEL = 44


def drawing() -> str:
    """The picture as SVG text: a row for each layer, the lowest at the bottom."""
    layers: dict[int, list[str]] = defaultdict(list)
    for name, package in PACKAGES.items():
        layers[package.layer].append(name.removeprefix("roll."))
    height = len(layers) * (ROW + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for row, layer in enumerate(sorted(layers, reverse=True)):
        top, names = GAP + row * (ROW + GAP), layers[layer]
        wide = (WIDTH - LABEL - GAP * (len(names) + 1)) / len(names)
        parts.append(f'<text x="12" y="{top + ROW / 2 + 5}" font-size="14" fill="#555555">{layer}</text>')
        for place, name in enumerate(names):
            left = LABEL + GAP + place * (wide + GAP)
            holds = PACKAGES[f"roll.{name}"].holds
            size = min(15.0, wide / (len(name) * 0.62))
            parts.append(
                f'<rect x="{left:.0f}" y="{top}" width="{wide:.0f}" height="{ROW}" rx="6" fill="#e8f0fe" '
                f'stroke="#4a76c9"><title>{escape(holds)}</title></rect>'
            )
            middle = left + wide / 2
            below = len(names) == 1
            parts.append(
                f'<text x="{middle:.0f}" y="{top + (22 if below else ROW / 2 + 5):.0f}" font-size="{size:.1f}" '
                f'text-anchor="middle" fill="#1a2b49">{escape(name)}</text>'
            )
            if below:
                parts.append(
                    f'<text x="{middle:.0f}" y="{top + 41}" font-size="12" text-anchor="middle" '
                    f'fill="#555555">{escape(holds)}</text>'
                )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
