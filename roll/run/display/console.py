"""Display of a run for a person: a progress bar and a table at a terminal, one plain line per step elsewhere."""

import logging
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TextIO, cast

from rich.console import Console, Group
from rich.highlighter import NullHighlighter
from rich.live import Live
from rich.logging import RichHandler
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from roll.run.display.view import Column, duration
from roll.utils.timing import phase_seconds

logger = logging.getLogger(__name__)

_ROWS_PER_HEADER = 20
_PACE_STEPS = 20
NEVER: Mapping[str, int] = {}
_MIN_SHARE = 0.005  # phases below half a percent of the step are left out of the time split


def open_terminal() -> Console | None:
    """The terminal behind stderr, None when stderr is a file or a pipe. Share it: two would draw over each other."""
    terminal = Console(file=cast(TextIO, LastingStream(sys.stderr)))
    return terminal if terminal.is_terminal and not terminal.is_dumb_terminal else None


class LastingStream:
    """A stream to a terminal that may be closed (SIGHUP): then what is written is lost, and nothing fails."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.encoding = stream.encoding
        self.errors = stream.errors

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


def terminal_handler(terminal: Console) -> logging.Handler:
    """Handler for configure_logging(terminal=...) that writes records above the progress bar."""
    handler = RichHandler(
        console=terminal, show_path=False, markup=False, highlighter=NullHighlighter(), log_time_format="%H:%M:%S"
    )
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(lambda record: record.name != __name__)  # the table shows these already
    return handler


def make_display(terminal: Console | None, columns: Sequence[Column], max_steps: int | None = None) -> "Display":
    """The display for this terminal, or the plain one for None. `max_steps`: where it is known already."""
    return TerminalDisplay(terminal, columns, max_steps) if terminal else PlainDisplay(columns)


class Display(ABC):
    """Shows the steps of a run as they end. A context: leaving it gives the terminal back, however the run ended."""

    @abstractmethod
    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics of a step that ended; step counts the steps done, 0 is the state before training."""

    @abstractmethod
    def start(self, steps_done: int, max_steps: int, every: Mapping[str, int] = NEVER) -> None:
        """Says that the steps begin, after those that an earlier run did already. `max_steps`: 0 of a run that takes
        none. `every`: after so many steps come such phases, 0 or less: never."""

    @abstractmethod
    def phase(self, name: str) -> None:
        """Shows what the run is doing now (Timer(on_enter=display.phase))."""

    @abstractmethod
    def summary(self, lines: Sequence[str]) -> None:
        """Shows the summary at the end (roll.run.display.view.summary_lines)."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives the terminal back."""


class PlainDisplay(Display):
    """One log line per step, with the time that the rest will take at the pace of the last steps."""

    def __init__(self, columns: Sequence[Column], clock: Callable[[], float] = time.monotonic):
        self._max_steps = 0
        self._every, self._others = NEVER, dict[str, float]()  # seconds that a validation or a checkpoint took last
        self._columns, self._clock, self._spent = columns, clock, 0.0  # in all of those
        self._ends: deque[tuple[int, float]] = deque(maxlen=_PACE_STEPS)

    def start(self, steps_done: int, max_steps: int, every: Mapping[str, int] = NEVER) -> None:
        del steps_done
        self._max_steps, self._every = max_steps, every

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        for phase in self._every:
            self._others[phase] = metrics.get(f"time/{phase}_s", 0.0) or self._others.get(phase, 0.0)
            self._spent += metrics.get(f"time/{phase}_s", 0.0)
        line = plain_line(step, self._max_steps, metrics, self._columns)
        logger.info(
            "%s", line if (remaining := self._remaining_s(step)) is None else f"{line}  left {duration(remaining)}"
        )

    def _remaining_s(self, step: int) -> float | None:
        """Seconds until the last step ends, with the validations and checkpoints that are to come; None before there is
        a pace. The first step is no measure of the others, and the validation before it none at all."""
        if step:
            self._ends.append((step, self._clock() - self._spent))
        if len(self._ends) < 2 or step >= self._max_steps:
            return None
        (first, began), (last, ended) = self._ends[0], self._ends[-1]
        due = {phase: -(-self._max_steps // n) - step // n for phase, n in self._every.items() if n > 0}
        others = sum(count * self._others.get(phase, 0.0) for phase, count in due.items())
        return (self._max_steps - step) * (ended - began) / (last - first) + others

    def phase(self, name: str) -> None:
        return None

    def summary(self, lines: Sequence[str]) -> None:
        for line in lines:
            logger.info("%s", line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class TerminalDisplay(PlainDisplay):
    """A row per step that stays, above a time split and a progress bar that move. The log file gets the plain lines."""

    def __init__(self, terminal: Console, columns: Sequence[Column], max_steps: int | None = None):
        super().__init__(columns)
        self._terminal = terminal
        self._num_rows = 0
        self._split = Text()
        self._progress = Progress(
            SpinnerColumn(),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[phase]:<14}"),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=terminal,
            expand=True,
        )
        self._task = self._progress.add_task("steps", total=max_steps, phase="starting")
        self._live = Live(self, console=terminal, refresh_per_second=4)

    def __rich__(self) -> Group:
        return Group(self._split, self._progress) if self._split else Group(self._progress)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        super().step(step, metrics)
        if self._num_rows % _ROWS_PER_HEADER == 0:
            self._print(header(self._columns), "bold")
        self._num_rows += 1
        self._print(row(step, metrics, self._columns))
        self._split = Text(" · ".join(time_split(metrics)), style="dim")
        self._progress.update(self._task, completed=step, phase="")

    def start(self, steps_done: int, max_steps: int, every: Mapping[str, int] = NEVER) -> None:
        super().start(steps_done, max_steps, every)
        self._progress.reset(self._task, total=max_steps or None, completed=steps_done, phase="")

    def phase(self, name: str) -> None:
        self._progress.update(self._task, phase=name)

    def summary(self, lines: Sequence[str]) -> None:
        super().summary(lines)
        self._live.stop()
        self._terminal.print(Panel(Text("\n".join(lines)), title="summary", expand=False))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _print(self, line: str, style: str = "") -> None:
        self._terminal.print(Text(line, style=style, no_wrap=True, overflow="ellipsis"))


def header(columns: Sequence[Column]) -> str:
    """Example: "  step   reward      val   length  entropy     clip     grad       lr     time"."""
    return f"{'step':>6}" + "".join(f"{column.title:>9}" for column in columns) + f"{'time':>11}"


def row(step: int, metrics: Mapping[str, float], columns: Sequence[Column]) -> str:
    """One step below the header; a dot where it measured nothing."""
    cells = [_cell(column, metrics) or "." for column in columns]
    return f"{step:>6}" + "".join(f"{cell:>9}" for cell in cells) + f"{_total(metrics):>11}"


def plain_line(step: int, max_steps: int, metrics: Mapping[str, float], columns: Sequence[Column]) -> str:
    """Example: "step 3/100  reward 0.531  lr 1.0e-05  time 0.91 s: rollout 0.61 s 67%, train_actor 0.30 s 33%"."""
    cells = [(column.title, _cell(column, metrics)) for column in columns]
    parts = [
        f"step {step}/{max_steps}" if max_steps else f"step {step}",
        *(f"{title} {cell}" for title, cell in cells if cell),
    ]
    if split := time_split(metrics):
        parts.append(f"time {_total(metrics)}: {', '.join(split)}")
    return "  ".join(parts)


def time_split(metrics: Mapping[str, float]) -> list[str]:
    """The top-level phases of a step in seconds and share, longest first: ["rollout 0.43 s 47%", "train_actor 0.30 s
    33%"]."""
    phases = phase_seconds(metrics)
    total = sum(phases.values())
    longest = sorted(phases.items(), key=lambda item: -item[1])
    shown = [(name, seconds) for name, seconds in longest if seconds > _MIN_SHARE * total]
    return [f"{name} {duration(seconds)} {seconds / total:.0%}" for name, seconds in shown]


def _cell(column: Column, metrics: Mapping[str, float]) -> str:
    return format(metrics[column.metric], column.format) if column.metric in metrics else ""


def _total(metrics: Mapping[str, float]) -> str:
    phases = phase_seconds(metrics)
    return duration(sum(phases.values())) if phases else ""
