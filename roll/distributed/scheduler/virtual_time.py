"""An event loop on which waiting takes no time: where nothing is ready, its clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_ASYNCIO = str(Path(asyncio.__file__).parent)


class Deadlock(Exception):
    """Raised if no task is ready and no timer will wake one. The text says who waits."""


class _Jumping(selectors.SelectSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock(_who_waits(self.loop))
        self.loop.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _Jumping()
        self.now = 0.0
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises Deadlock where it would wait for ever."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(work)
        except Deadlock:
            for task in asyncio.all_tasks(runner.get_loop()):
                task.cancel()
            raise


def _who_waits(loop: asyncio.AbstractEventLoop) -> str:
    """Example: "at 12.5 s these wait for ever: 3 x RolloutCore.collect"."""
    names = Counter(_innermost(task) for task in asyncio.all_tasks(loop))
    waiting = ", ".join(f"{count} x {name}" for name, count in sorted(names.items()))
    return f"at {loop.time():g} s these wait for ever: {waiting or 'nobody'}"


def _innermost(task: asyncio.Task[Any]) -> str:
    """The name of the function in which a task waits, those of asyncio itself aside."""
    work: Any = task.get_coro()
    name = str(getattr(work, "__qualname__", work))
    while (work := getattr(work, "cr_await", None)) is not None and hasattr(work, "cr_code"):
        if not work.cr_code.co_filename.startswith(_ASYNCIO):
            name = work.__qualname__
    return name
