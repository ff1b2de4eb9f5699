"""An event loop on which waiting takes no time: where nothing is ready, its clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """No task is ready, and no timer will wake one."""


class _Jumping(selectors.SelectSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            tasks = [task.get_coro() for task in asyncio.all_tasks(self.loop)]
            raise Deadlock(f"at {self.loop.now:g} s these wait for ever: {tasks}")
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
    """The result of `work`. Raises Deadlock if it would wait for ever."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(work)
        except Deadlock:
            for task in asyncio.all_tasks(runner.get_loop()):
                task.cancel()
            raise
