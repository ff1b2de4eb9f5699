"""Limits on the time of an episode, which do not count what the engines take."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopped(clock: asyncio.Timeout) -> Iterator[None]:
    """The time that the clock allows does not run inside: engines may stand still for new weights, or be away.

    Example: of 60 s, 40 are left when an answer is asked for, and 40 when it is there, an hour later.
    """
    due = clock.when()
    if due is None:
        yield
        return
    loop = asyncio.get_running_loop()
    left = due - loop.time()
    clock.reschedule(None)
    try:
        yield
    finally:
        clock.reschedule(loop.time() + left)
