"""Boards of square cells, drawn as pictures."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

Colour = tuple[int, int, int]
Shape = Literal["disc", "ring", "square", "diamond", "cross", "bricks"]
RenderMode = Literal["text", "rgb_array"]
"""How a board is shown: in symbols, or drawn. The words are Gymnasium's, and ROLL's."""
RENDER_MODES: tuple[RenderMode, ...] = ("text", "rgb_array")
LEAST_CELL = 8
_LINE = (200, 205, 215)

Cell = tuple[Colour, Sequence[tuple[Shape, Colour]]]
"""The colour of a cell's ground, and the shapes on it, the last on top."""


def check_rendering(name: str, render_mode: str, cell_pixels: int) -> None:
    """ValueError for a `render_mode` that is none, or cells too small to tell apart. `name`: of the environment."""
    if render_mode not in RENDER_MODES:
        raise ValueError(f"{name}: render_mode is {render_mode!r}, not {' or '.join(RENDER_MODES)}")
    if cell_pixels < LEAST_CELL:
        raise ValueError(f"{name}: cell_pixels is {cell_pixels}; a cell needs {LEAST_CELL} or more")


def draw_board(rows: Sequence[Sequence[Cell]], cell_pixels: int) -> np.ndarray:
    """The board with lines between its cells, uint8 [rows * cell_pixels, columns * cell_pixels, 3]."""
    return np.concatenate([np.concatenate([_cell(cell, cell_pixels) for cell in row], axis=1) for row in rows])


def _cell(cell: Cell, size: int) -> np.ndarray:
    ground, shapes = cell
    pixels = np.empty((size, size, 3), np.uint8)
    pixels[:] = ground
    for shape, colour in shapes:
        pixels[_inside(shape, size)] = colour
    pixels[0], pixels[:, 0] = _LINE, _LINE
    return pixels


def _inside(shape: Shape, size: int) -> np.ndarray:
    """The pixels of a shape in a cell, bool [size, size]."""
    places = (np.arange(size) + 0.5) / size * 2 - 1  # from -1 to 1
    across, down = np.abs(places)[None, :], np.abs(places)[:, None]
    distance = np.hypot(across, down)
    match shape:
        case "disc":
            return distance < 0.62
        case "ring":
            return (distance < 0.85) & (distance > 0.65)
        case "square":
            return np.maximum(across, down) < 0.7
        case "diamond":
            return across + down < 0.7
        case "cross":
            return (np.abs(across - down) < 0.2) & (np.maximum(across, down) < 0.6)
        case "bricks":
            return (np.arange(size)[:, None] * 4 // size) % 2 == (np.arange(size)[None, :] * 4 // size) % 2
