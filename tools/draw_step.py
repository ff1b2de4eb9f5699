"""Draws docs/images/step.svg: a step of reinforcement learning, from the table below.

Run it as `python -m tools.draw_step`.
"""

from html import escape
from pathlib import Path
from typing import NamedTuple

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "step.svg"


class Phase(NamedTuple):
    """One phase of a step. `method`: the method of RLPipeline that `step` calls for it."""

    verb: str
    method: str
    driver: str
    sent: str
    workers: str
    returned: str


STEP = (
    Phase("rollout", "collect", "the scheduler starts groups", "tasks", "engines sample", "facts of each answer"),
    Phase("reward", "collect", "each answer, as soon as it is there", "answers", "rewards, environments", "rewards"),
    Phase(
        "score",
        "score",
        "arrays stay in the object store",
        "references to rows",
        "trainer, reference, critic",
        "references to log-probs",
    ),
    Phase("credit", "assign_credit", "advantages within each group", "", "", ""),
    Phase(
        "train", "train", "counts for the scale of the loss", "advantages", "updates of critic and policy", "metrics"
    ),
    Phase("publish", "publish", "the next groups may start", "version", "the trainer sends weights to engines", ""),
)

WIDTH, ROW, TOP = 960, 76, 44  # in pixels
VERB, DRIVER, WORKERS = (16, 100), (132, 300), (648, 296)  # left edge and width of each column
BOXES = {"verb": ("#4a76c9", "#ffffff"), "driver": ("#e8f0fe", "#1a2b49"), "workers": ("#e9f5ec", "#1d3b26")}


def drawing() -> str:
    """The picture as SVG text: a row for each phase, the driver on the left and the workers on the right."""
    height = TOP + ROW * len(STEP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="#555555"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(DRIVER[0] + DRIVER[1] / 2, 26, "driver", 14, "#555555"),
        _text(WORKERS[0] + WORKERS[1] / 2, 26, "workers, on their devices", 14, "#555555"),
    ]
    for number, phase in enumerate(STEP):
        top = TOP + number * ROW
        parts += _box("verb", VERB, top, phase.verb) + _box("driver", DRIVER, top, phase.driver)
        if phase.workers:
            parts += _box("workers", WORKERS, top, phase.workers)
        left, right = sum(DRIVER) + 6, WORKERS[0] - 6
        for text, y, ends in ((phase.sent, top + 22, (left, right)), (phase.returned, top + 48, (right, left))):
            if text:
                parts.append(_text((left + right) / 2, y - 4, text, 12, "#555555"))
                line = f'x1="{ends[0]}" y1="{y}" x2="{ends[1]}" y2="{y}"'
                parts.append(f'<line {line} stroke="#555555" marker-end="url(#tip)"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(kind: str, column: tuple[int, int], top: int, text: str) -> list[str]:
    (left, width), (fill, ink) = column, BOXES[kind]
    rectangle = (
        f'<rect x="{left}" y="{top}" width="{width}" height="{ROW - 16}" rx="6" fill="{fill}" stroke="#4a76c9"/>'
    )
    return [rectangle, _text(left + width / 2, top + (ROW - 16) / 2 + 5, text, 15, ink)]


def _text(x: float, y: float, text: str, size: int, ink: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="middle" fill="{ink}">{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
