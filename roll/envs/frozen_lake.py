"""The game Frozen Lake: walk over ice to the goal, around the holes. Every seed has a map of its own."""

import random
import zlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from roll.envs.base import SUCCESS, VALID, Env, EnvStep
from roll.envs.drawing import Cell, RenderMode, check_rendering, draw_board

MOVES: Mapping[str, tuple[int, int]] = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
DIRECTIONS = tuple(MOVES)
HELD_OUT_SHARE = 8
"""One map in so many is held out."""
SYMBOLS = {"P": "P", "_": "_", "O": "O", "G": "G", "X": "X", "V": "V"}
_ICE, _WATER, _GOAL, _PLAYER = (225, 240, 250), (30, 60, 120), (40, 160, 70), (210, 50, 40)
CELLS: Mapping[str, Cell] = {
    "_": (_ICE, ()),
    "O": (_ICE, (("square", _WATER),)),
    "G": (_ICE, (("diamond", _GOAL),)),
    "P": (_ICE, (("disc", _PLAYER),)),
    "X": (_ICE, (("square", _WATER), ("cross", _PLAYER))),
    "V": (_ICE, (("ring", _PLAYER), ("diamond", _GOAL))),
}
"""How each symbol is drawn: X is the player in a hole, V at the goal."""
_IN_SYMBOLS = "P is you, _ is ice, O is a hole, G is the goal. Go to G without falling into a hole."
_DRAWN = (
    "The red disc is you, dark squares are holes, the green diamond is the goal. Go to the goal without falling into a "
    "hole."
)
_ACTIONS = "Actions: Left, Down, Right, Up."


class FrozenLake(Env):
    """The observation is the map with the player on it. Reaching the goal earns 1, a hole ends the episode with 0.

    `is_slippery`: a move goes where it should, or to either side of that, one third each. `maps`: `training` and
    `held_out` have no map in common, however many seeds are drawn; a 4 x 4 lake has few maps, so different seeds alone
    do not keep validation apart from training. `render_mode`: the map is shown in symbols (text), or as a picture
    (rgb_array) of cells of `cell_pixels` pixels.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self,
        size: int = 4,
        p: float = 0.8,
        is_slippery: bool = False,
        maps: Literal["all", "training", "held_out"] = "all",
        max_steps: int | None = None,
        grid_lookup: Mapping[str, str] | None = None,
        render_mode: RenderMode = "text",
        cell_pixels: int = 28,
    ):
        check_rendering("frozen_lake", render_mode, cell_pixels)
        if size < 2 or not 0 < p <= 1:
            raise ValueError(f"frozen_lake needs size 2 or more and p in (0, 1], not {size} and {p}")
        if maps not in ("all", "training", "held_out"):
            raise ValueError(f"frozen_lake: maps is {maps!r}, not all, training or held_out")
        self.size, self.p, self.is_slippery, self.maps, self.max_steps = size, p, is_slippery, maps, max_steps
        self._symbols = {**SYMBOLS, **(grid_lookup or {})}
        self._is_drawn, self._cell_pixels = render_mode != "text", cell_pixels
        self.instruction = f"You walk on a frozen lake. {_DRAWN if self._is_drawn else _IN_SYMBOLS} {_ACTIONS}"

    def reset(self, seed: int) -> Any:
        self._rng = random.Random(f"frozen_lake {seed}")
        self.grid = self._draw_map()
        self.position = (0, 0)
        self._steps = 0
        return self.render()

    def step(self, action: str) -> EnvStep:
        self._steps += 1
        name = action.strip().capitalize()
        before = self.position
        if name in MOVES:
            if self.is_slippery:
                name = DIRECTIONS[(DIRECTIONS.index(name) + self._rng.choice((-1, 0, 1))) % 4]
            self._move(name)
        cell = self.grid[self.position[0]][self.position[1]]
        terminated = cell in "GO"
        truncated = not terminated and self.max_steps is not None and self._steps >= self.max_steps
        metrics = {
            VALID: float(name in MOVES),
            "action_is_effective": float(self.position != before),
            SUCCESS: float(cell == "G"),
        }
        return EnvStep(self.render(), float(cell == "G"), terminated, truncated, metrics)

    def render(self) -> Any:
        row, column = self.position
        rows = [list(line) for line in self.grid]
        rows[row][column] = {"G": "V", "O": "X"}.get(rows[row][column], "P")
        if self._is_drawn:
            return draw_board([[CELLS[cell] for cell in line] for line in rows], self._cell_pixels)
        return "\n".join("".join(self._symbols[cell] for cell in line) for line in rows)

    def random_action(self, rng: random.Random) -> str:
        return rng.choice(DIRECTIONS)

    def _move(self, name: str) -> None:
        last = self.size - 1
        down, right = MOVES[name]
        row, column = self.position
        self.position = (min(last, max(0, row + down)), min(last, max(0, column + right)))

    def _draw_map(self) -> tuple[str, ...]:
        """Random maps until one has a way to the goal and belongs to `maps`."""
        while True:
            cells = [["_" if self._rng.random() < self.p else "O" for _ in range(self.size)] for _ in range(self.size)]
            cells[0][0], cells[-1][-1] = "_", "G"
            grid = tuple("".join(row) for row in cells)
            if self.maps != "all" and is_held_out(grid) != (self.maps == "held_out"):
                continue
            if (0, 0) in distances(grid):
                return grid


def is_held_out(grid: tuple[str, ...]) -> bool:
    """The salt 7 is one that holds out no very common map, such as the lake without holes (one map in eighteen):
    held-out lakes of 4 x 4 are then as hard as lakes are, and the best blind way crosses a third of them."""
    return zlib.crc32(f"7 {''.join(grid)}".encode()) % HELD_OUT_SHARE == 0


def distances(grid: tuple[str, ...]) -> dict[tuple[int, int], int]:
    """Moves to the goal from every cell that can reach it."""
    size = len(grid)
    goal = (size - 1, size - 1)
    steps = {goal: 0}
    queue = deque([goal])
    while queue:
        row, column = queue.popleft()
        for down, right in MOVES.values():
            cell = (row + down, column + right)
            inside = 0 <= cell[0] < size and 0 <= cell[1] < size
            if inside and cell not in steps and grid[cell[0]][cell[1]] != "O":
                steps[cell] = steps[row, column] + 1
                queue.append(cell)
    return steps
