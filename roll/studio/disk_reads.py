"""Work on the files of runs that may never end, as on a network disk that is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE_S = 5.0


class Unanswered(Exception):
    """The work goes on; whoever asks for it later may find it done."""

    def __init__(self, patience_s: float):
        super().__init__(f"Its files have not answered for {patience_s:g} s: a disk of theirs may be slow, or gone.")


class Waits:
    """Each piece of work has a thread of its own, so one that hangs holds up only those who ask for it. What goes on
    under a name is joined, not begun again. Threads may ask at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going: dict[Hashable, Future[Any]] = {}

    def get(self, name: Hashable, work: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
        """The result of the work. Raises what it raises, and Unanswered once the patience is at its end."""
        return _result(self._begun(name, work), patience_s, patience_s)

    async def wait(self, name: Hashable, work: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
        """The same without holding up the event loop. A caller that is cancelled stops to wait."""
        begun = self._begun(name, work)
        ended = asyncio.wrap_future(begun)
        ended.add_done_callback(lambda future: future.cancelled() or future.exception())  # nobody may be left to ask
        await asyncio.wait([ended], timeout=patience_s)
        return _result(begun, 0.0, patience_s)

    def _begun(self, name: Hashable, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            going = self._going.get(name)
            if going is None:
                going = self._going[name] = Future()
                going.set_running_or_notify_cancel()  # no caller can cancel it
                # a daemon: Python does not wait for it at its end
                threading.Thread(target=self._do, args=(name, work, going), name="roll_studio", daemon=True).start()
            return going

    def _do(self, name: Hashable, work: Callable[[], Any], future: Future[Any]) -> None:
        try:
            result, error = work(), None
        except BaseException as raised:
            result, error = None, raised
        with self._lock:
            del self._going[name]
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def _result(future: Future[T], timeout_s: float, patience_s: float) -> T:
    try:
        return future.result(timeout_s)
    except TimeoutError:
        if future.done():  # a TimeoutError of the work's own
            raise
        raise Unanswered(patience_s) from None
