"""Tasks of an event loop: nothing in them ends the loop, and one that nobody awaits does not fail in silence."""

import asyncio
import os
import select
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from roll.errors import TaskError, describe

T = TypeVar("T")


async def contained(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. KeyboardInterrupt and SystemExit, at which asyncio would leave the whole loop and everybody
    who waits on it, are raised as TaskError."""
    try:
        return await work
    except (KeyboardInterrupt, SystemExit) as error:
        raise TaskError(describe(error)) from error


def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task for `work`, contained. Whoever starts it awaits it, or looks at how it ended."""
    task = asyncio.create_task(contained(work))
    task.add_done_callback(lambda ended: work.close())  # one that is cancelled before its first step has not begun it
    return task


class BackgroundTasks:
    """Owns tasks that nobody awaits, until they end. When one fails, `on_failure` is called with its error; without
    one, the exception handler of the loop, which ends what the loop serves: the run (`EventLoopThread`) or the worker
    (`AsyncHost`)."""

    def __init__(self, on_failure: Callable[[BaseException], None] | None = None):
        self._on_failure = on_failure
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = start(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        for task in self._running:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if self._on_failure is not None:
            self._on_failure(error)
        else:
            message = "a task in the background failed"
            task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})


def lost_failure(context: dict[str, Any]) -> BaseException | None:
    """Return a failure that nobody would be told of, from the context of a loop's exception handler: of a task of
    BackgroundTasks, or of a callback. None if it is no such failure, as for a result that came after its caller had
    gone."""
    return None if "future" in context else context.get("exception")


# The end of a process, noticed by one that is not its parent.


def on_exit(pid: int, then: Callable[[], None]) -> None:
    """Calls `then` as soon as that process has ended, however it died: from a thread, or at once if it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        then()
        return

    def watch() -> None:
        ended = select.poll()  # select would take no descriptor above 1024
        ended.register(descriptor, select.POLLIN)
        ended.poll()
        os.close(descriptor)
        then()

    threading.Thread(target=watch, name="roll_owner_watch", daemon=True).start()
