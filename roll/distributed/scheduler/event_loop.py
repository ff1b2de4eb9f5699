"""An event loop beside the driver's thread."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from roll.errors import RollError, TaskError, describe
from roll.utils.background import contained, lost_failure

T = TypeVar("T")
_LOOK_S = 0.5


class EventLoopThread:
    """An asyncio loop in a thread of its own, for the parts of a run that wait rather than compute.

    What fails on it with nobody to tell ends the present `run`, and every later one, with its cause."""

    def __init__(self, name: str):
        self.loop = asyncio.SelectorEventLoop()  # whatever policy a library set: uvloop ends otherwise at interrupts
        self.loop.set_exception_handler(self._handle_exception)
        self._lost: Future[None] = Future()  # holds the first failure that nobody was told of
        self._meanwhile: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the loop and waits for it. An interrupt of the waiting thread cancels the work."""
        if self._lost.done():
            work.close()
            self._lost.result()
        future = asyncio.run_coroutine_threadsafe(contained(work), self.loop)
        try:
            both: list[Future[Any]] = [future, self._lost]
            while not wait(both, self._meanwhile and _LOOK_S, FIRST_COMPLETED).done:
                if self._meanwhile is not None:
                    self._meanwhile()
            if self._lost.done():
                self._lost.result()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @contextmanager
    def meanwhile(self, look: Callable[[], None]) -> Iterator[None]:
        """Poll `look` while another thread blocks in `run`; what it raises is raised there."""
        self._meanwhile = look
        try:
            yield
        finally:
            self._meanwhile = None

    def close(self) -> None:
        """Cancels what still runs on the loop and ends the thread."""
        if self.loop.is_running():
            asyncio.run_coroutine_threadsafe(self._cancel_tasks(), self.loop).result(timeout=5)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout=5)

    def _serve(self) -> None:
        try:
            self.loop.run_forever()
        except BaseException as error:
            self._fail(error)

    def _handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = lost_failure(context)
        if error is None:
            loop.default_exception_handler(context)
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._lost.done():
            return
        if not isinstance(error, RollError):
            cause, error = error, TaskError(f"a task in the background failed: {describe(error)}")
            error.__cause__ = cause
        self._lost.set_exception(error)

    async def _cancel_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=3) if tasks else None


# An event loop on which waiting takes no time: where nothing is ready, its clock jumps to the next timer.

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
    """The result of `work`, on a thread of its own if a loop runs on this one, as in a notebook. Raises Deadlock if it
    would wait for ever."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_virtually(work)
    with ThreadPoolExecutor(1, thread_name_prefix="virtual-time") as thread:
        return thread.submit(_run_virtually, work).result()


def _run_virtually(work: Coroutine[Any, Any, T]) -> T:
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
