"""The door of every HTTP server of a run: uvicorn, with limits for whoever comes."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 20.0  # that the line and the headers of a request may take
MOST_CONNECTIONS = 4096
_MOST_HEAD_BYTES = 65_536
_IDLE_S = 120  # longer than clients keep connections (httpx 5 s, Go 90): a request on one just closed fails


def behind_door(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """uvicorn's configuration of a server of this app: the head of a request is limited in size and time, and beyond
    MOST_CONNECTIONS requests are answered with 503. Lets the process open as many files as these need, if the
    machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST_CONNECTIONS  # not `hard`: macOS refuses its own infinity
    if 0 <= soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, soft // 2)
    return uvicorn.Config(
        app,
        http=_Connection,
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
        limit_concurrency=most,
        timeout_keep_alive=_IDLE_S,
        log_level="error",  # it would say every request that is none
        access_log=False,  # addresses may hold tokens
        **options,
    )


class _Connection(H11Protocol):
    """A connection that is cut off if the head of a request takes longer than HEAD_S."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._due = self.loop.call_later(HEAD_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        has_begun = self.cycle is None or self.conn.trailing_data[0]
        if self.conn.their_state is not h11.IDLE or not has_begun:
            self._unwatch()
        elif self._due is None:
            self._due = self.loop.call_later(HEAD_S, self.transport.abort)

    def _unwatch(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
