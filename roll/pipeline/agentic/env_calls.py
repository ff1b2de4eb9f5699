"""An environment in a thread of its own: its calls may take long, hang or crash without holding up anybody."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from roll.errors import EnvError, describe
from roll.utils.background import BackgroundTasks

T = TypeVar("T")
_CLOSE_TIMEOUT_S = 60.0


class EnvCrash(EnvError):
    """The environment raised."""


class EnvHang(EnvError):
    """The environment, or the whole episode, took longer than it may."""


class EnvThread:
    """Runs calls in order. After a hang the thread is given up: it cannot be stopped from outside.

    A turnstile is held from the moment a call may start until it has ended or is given up, also when nobody waits for
    it any more, so that no more calls run at once than it lets through.
    """

    def __init__(self, name: str, turnstile: asyncio.Semaphore | None = None):
        self.is_hung = False
        self.was_left_busy = False
        """A call was running when the thread was closed."""
        self._is_busy = False
        self._turnstile = turnstile
        self._ended: asyncio.Event | None = None  # of the newest call
        self._closing = BackgroundTasks()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]] | None]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    async def call(self, what: str, function: Callable[..., T], *arguments: Any, timeout_s: float | None) -> T:
        """Raises EnvCrash with the cause, or EnvHang. `timeout_s` begins when the call may start."""
        ticket = _Ticket(self._turnstile)
        await ticket.take()
        loop = asyncio.get_running_loop()
        ended = self._ended = asyncio.Event()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            ticket.give_back()
            ended.set()
            if future.done():
                return
            if error is None:
                future.set_result(result)
            elif isinstance(error, EnvCrash):  # of `function` itself: the environment returned what it may not
                future.set_exception(error)
            else:
                future.set_exception(EnvCrash(f"{what} raised {describe(error)}"))

        def done(result: Any, error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, error)

        self._calls.put((lambda: function(*arguments), done))
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            self.is_hung = True
            ticket.give_back()
            raise EnvHang(f"{what} took longer than {timeout_s:g} s") from None
        except asyncio.CancelledError:
            loop.call_later(min(timeout_s or _CLOSE_TIMEOUT_S, _CLOSE_TIMEOUT_S), ticket.give_back)
            raise

    def close(self, last: Callable[[], None] | None = None) -> None:
        """Ends the thread after `last`; does not wait."""
        self.was_left_busy = self._is_busy
        if last is not None and self._turnstile is not None and not self.is_hung:
            self._closing.start(self._close_in_turn(last))
            return
        if last is not None:
            self._calls.put((last, lambda result, error: None))
        self._calls.put(None)

    async def _close_in_turn(self, last: Callable[[], None]) -> None:
        try:
            if self._ended is not None:  # a call that nobody waits for has its turn already: one is enough
                await asyncio.wait_for(self._ended.wait(), _CLOSE_TIMEOUT_S)
            with contextlib.suppress(EnvCrash, EnvHang):
                await self.call("close", last, timeout_s=_CLOSE_TIMEOUT_S)
        except TimeoutError:
            self._calls.put((last, lambda result, error: None))
        finally:
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


class _Ticket:
    """One passage through a turnstile, given back once."""

    def __init__(self, turnstile: asyncio.Semaphore | None):
        self._turnstile = turnstile
        self._is_held = False

    async def take(self) -> None:
        if self._turnstile is not None:
            await self._turnstile.acquire()
            self._is_held = True

    def give_back(self) -> None:
        if self._is_held and self._turnstile is not None:
            self._is_held = False
            self._turnstile.release()
