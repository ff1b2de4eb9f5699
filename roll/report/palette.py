"""Colours and logo of the report and of the studio. Of charts, those of runs, of phases and of verdicts have none in
common."""

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path

PALETTE = (Path(__file__).parent / "palette.css").read_text(encoding="utf-8")
LOGO = Path(__file__).parent / "logo.svg"
LOGO_ADDRESS = "data:image/svg+xml;base64," + base64.b64encode(LOGO.read_bytes()).decode("ascii")
ACCENT = PALETTE.partition("--accent: ")[2].partition(";")[0]

RUN_COLORS = ("#4c78d0", "#e6892e", "#9061c9", "#2aa0a8", "#d6679f", "#96694c", "#7f8c2d", "#5b6f8f")
"""Runs in one chart, the first run first. Each reads on white and on black; none is red or green."""

GOOD, BAD = "#2e9e4f", "#cf4332"

_PHASE_COLORS: Mapping[str, str] = {
    "rollout": "#f2b84b", "train_actor": "#7b8fd4", "train": "#7b8fd4", "train_critic": "#b08fd0", "score": "#63b7a4",
    "weight_sync": "#e59a8d", "validate": "#9ac55a", "checkpoint": "#c79f78", "reward": "#d98cc3", "gather": "#8bb8d8",
    "other": "#a6a9ae",
}  # fmt: skip
_SPARE_COLORS = ("#c3b54b", "#6fa8a0", "#b7727f", "#8d84b8", "#7fae86", "#d0a0a8", "#5f97c4", "#a98f5c")


def phase_colors(phases: Iterable[str]) -> dict[str, str]:
    """A colour for each phase: the usual ones have theirs in every chart, others take what is free in turn."""
    names = list(dict.fromkeys(phases))
    others = [name for name in names if name not in _PHASE_COLORS]
    free = dict(zip(others, _SPARE_COLORS * (1 + len(others) // len(_SPARE_COLORS)), strict=False))
    return {name: _PHASE_COLORS.get(name) or free[name] for name in names}
