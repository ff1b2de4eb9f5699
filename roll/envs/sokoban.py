"""Sokoban: push every box onto a target. Rooms are made by playing backwards, so each can be solved."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from roll.envs import drawing
from roll.envs.base import SUCCESS, VALID, Env, EnvStep

MOVES: Mapping[str, tuple[int, int]] = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
CODES = {"wall": 0, "floor": 1, "target": 2, "box on target": 3, "box": 4, "player": 5, "player on target": 6}
SYMBOLS = {0: "#", 1: "_", 2: "O", 3: "*", 4: "X", 5: "P", 6: "S"}
STEP, ON_TARGET, SOLVED = -0.1, 1.0, 10.0
Cell = tuple[int, int]
_WALL, _MORTAR, _FLOOR = (110, 100, 95), (135, 125, 118), (240, 235, 220)
_TARGET, _BOX, _DONE, _PLAYER = (220, 60, 50), (160, 105, 45), (60, 150, 70), (50, 90, 200)
DRAWN: Mapping[int, drawing.Cell] = {
    0: (_WALL, (("bricks", _MORTAR),)),
    1: (_FLOOR, ()),
    2: (_FLOOR, (("diamond", _TARGET),)),
    3: (_FLOOR, (("square", _DONE), ("cross", _FLOOR))),
    4: (_FLOOR, (("square", _BOX), ("cross", _FLOOR))),
    5: (_FLOOR, (("disc", _PLAYER),)),
    6: (_FLOOR, (("disc", _PLAYER), ("diamond", _TARGET))),
}
"""How each of CODES is drawn."""
_DRAWN_LEGEND = (
    "Bricks are walls, a red diamond is a target, a brown square is a box, a green square a box on a target, the blue "
    "disc is you"
)


class Sokoban(Env):
    """Every step costs .1, a box pushed onto a target earns 1 and one pushed off costs 1, the last one earns 10 more.

    `search_depth` is how many moves are played backwards from the solved room: the solution is no longer than that.
    `render_mode`: the room is shown in symbols (text), or as a picture (rgb_array) of cells of `cell_pixels` pixels.
    `dim_x` and `dim_y` are its rows and columns, as ROLL names the two numbers of `dim_room`.
    """

    def __init__(
        self,
        dim_room: Sequence[int] = (6, 6),
        num_boxes: int = 1,
        search_depth: int = 30,
        wall_share: float = 0.15,
        max_steps: int | None = None,
        grid_lookup: Mapping[int | str, str] | None = None,
        grid_vocab: Mapping[str, str] | None = None,
        render_mode: drawing.RenderMode = "text",
        cell_pixels: int = 28,
        dim_x: int | None = None,
        dim_y: int | None = None,
    ):
        drawing.check_rendering("sokoban", render_mode, cell_pixels)
        rows, columns = dim_room
        self.height, self.width = int(dim_x or rows), int(dim_y or columns)
        if min(self.height, self.width) < 4 or num_boxes < 1 or search_depth < 1:
            raise ValueError("sokoban needs a room of 4 x 4 or more, a box, and search_depth 1 or more")
        self.num_boxes, self.search_depth, self.wall_share, self.max_steps = (
            num_boxes,
            search_depth,
            wall_share,
            max_steps,
        )
        self._symbols = {**SYMBOLS, **{int(code): symbol for code, symbol in (grid_lookup or {}).items()}}
        longest = max_steps or 1000
        self.reward_range = (STEP * longest - num_boxes, SOLVED + ON_TARGET * num_boxes)
        vocabulary = grid_vocab or {self._symbols[code]: name for name, code in CODES.items()}
        self._is_drawn, self._cell_pixels = render_mode != "text", cell_pixels
        symbols = ", ".join(f"{symbol} is {name}" for symbol, name in vocabulary.items())
        legend = _DRAWN_LEGEND if self._is_drawn else symbols
        self.instruction = f"Push every box onto a target. {legend}. Actions: {', '.join(MOVES)}."

    def reset(self, seed: int) -> Any:
        rng = random.Random(f"sokoban {seed}")
        while not self._draw_room(rng):
            pass
        self._steps = 0
        return self.render()

    def step(self, action: str) -> EnvStep:
        self._steps += 1
        name = action.strip().capitalize()
        before, on_target = self.player, self._num_on_target
        if name in MOVES:
            self._push(MOVES[name])
        solved = self.boxes == self.targets
        reward = STEP + ON_TARGET * (self._num_on_target - on_target) + (SOLVED if solved else 0.0)
        truncated = not solved and self.max_steps is not None and self._steps >= self.max_steps
        metrics = {
            VALID: float(name in MOVES),
            "action_is_effective": float(self.player != before),
            SUCCESS: float(solved),
        }
        return EnvStep(self.render(), reward, solved, truncated, metrics)

    def render(self) -> Any:
        if self._is_drawn:
            cells = [[DRAWN[self._code((row, column))] for column in range(self.width)] for row in range(self.height)]
            return drawing.draw_board(cells, self._cell_pixels)
        return "\n".join(
            "".join(self._symbols[self._code((row, column))] for column in range(self.width))
            for row in range(self.height)
        )

    def random_action(self, rng: random.Random) -> str:
        return rng.choice(tuple(MOVES))

    @property
    def _num_on_target(self) -> int:
        return len(self.boxes & self.targets)

    def _code(self, cell: Cell) -> int:
        if cell in self.walls:
            return CODES["wall"]
        on = " on target" if cell in self.targets else ""
        if cell == self.player:
            return CODES["player" + on]
        if cell in self.boxes:
            return CODES["box" + on]
        return CODES["target" if on else "floor"]

    def _push(self, move: Cell) -> None:
        ahead = (self.player[0] + move[0], self.player[1] + move[1])
        if ahead in self.walls:
            return
        if ahead in self.boxes:
            beyond = (ahead[0] + move[0], ahead[1] + move[1])
            if beyond in self.walls or beyond in self.boxes:
                return
            self.boxes = (self.boxes - {ahead}) | {beyond}
        self.player = ahead

    def _draw_room(self, rng: random.Random) -> bool:
        """A solved room, played backwards: the player steps away and may pull a box along, which a push undoes. False
        if no box left its target."""
        cells = [(row, column) for row in range(self.height) for column in range(self.width)]
        border = {c for c in cells if c[0] in (0, self.height - 1) or c[1] in (0, self.width - 1)}
        inner = [cell for cell in cells if cell not in border]
        self.walls = frozenset(border | {cell for cell in inner if rng.random() < self.wall_share})
        free = [cell for cell in inner if cell not in self.walls]
        if len(free) < self.num_boxes + 2:
            return False
        *boxes, self.player = rng.sample(free, self.num_boxes + 1)
        self.targets = self.boxes = frozenset(boxes)
        for _ in range(self.search_depth):
            self._pull(rng.choice(tuple(MOVES.values())), pulls=rng.random() < 0.8)
        return self.boxes != self.targets

    def _pull(self, move: Cell, pulls: bool) -> None:
        ahead = (self.player[0] + move[0], self.player[1] + move[1])
        behind = (self.player[0] - move[0], self.player[1] - move[1])
        if ahead in self.walls or ahead in self.boxes:
            return
        if pulls and behind in self.boxes:
            self.boxes = (self.boxes - {behind}) | {self.player}
        self.player = ahead
