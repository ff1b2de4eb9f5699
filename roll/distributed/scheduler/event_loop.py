"""An event loop beside the driver's thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
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
