"""The end of a process, noticed by one that is not its parent."""

import os
import select
import threading
from collections.abc import Callable


def when_gone(pid: int, then: Callable[[], None]) -> None:
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
