"""An environment in a thread of its own: its calls may take long, hang or crash without holding up anybody."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from roll.errors import EnvError

T = TypeVar("T")


class EnvCrash(EnvError):
    """The environment raised."""


class EnvHang(EnvError):
    """The environment, or the whole episode, took longer than it may."""


class EnvThread:
    """Runs calls in order. After a hang the thread is given up: it cannot be stopped from outside."""

    def __init__(self, name: str):
        self.is_hung = False
        self.was_left_busy = False
        """A call was running when the thread was closed."""
        self._is_busy = False
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]] | None]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    async def call(self, what: str, function: Callable[..., T], *arguments: Any, timeout_s: float | None) -> T:
        """Raises EnvCrash with the cause, or EnvHang."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(EnvCrash(f"{what} raised {type(error).__name__}: {error}"))

        def done(result: Any, error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, error)

        self._calls.put((lambda: function(*arguments), done))
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            self.is_hung = True
            raise EnvHang(f"{what} took longer than {timeout_s:g} s") from None

    def close(self, last: Callable[[], None] | None = None) -> None:
        """Ends the thread after `last`; does not wait."""
        self.was_left_busy = self._is_busy
        if last is not None:
            self._calls.put((last, lambda result, error: None))
        self._calls.put(None)

    def _serve(self) -> None:
        while (item := self._calls.get()) is not None:
            function, done = item
            self._is_busy = True
            try:
                result = function()
            except BaseException as error:
                done(None, error)
            else:
                done(result, None)
            self._is_busy = False
