"""The door of every HTTP server of a run: what a stranger may hold of it before anybody is known.

uvicorn limits the size of headers and closes what is idle. It has no limit of time for a request that is never whole,
and where all connections are taken it refuses whoever comes, so here those give way that have not asked anything."""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any, ClassVar

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

HEAD_S = 20.0  # that the line and the headers of a request may take
MOST_CONNECTIONS = 4096
_MOST_HEAD_BYTES = 65_536
_IDLE_S = 120  # longer than clients keep connections (httpx 5 s, Go 90): a request on one just closed fails
_SAY_S = 1.0  # between two lines of the log about those that were turned away


def behind_door(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """uvicorn's configuration of a server of this app, with the limits above. Lets the process open as many files as
    these need, if the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST_CONNECTIONS  # not `hard`: macOS refuses its own infinity
    if 0 <= soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, soft // 2)
    return uvicorn.Config(
        app,
        http=type("Connection", (_Connection,), {"places": _Places(most)}),
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
        timeout_keep_alive=_IDLE_S,
        log_level="error",  # it would say every request that is none
        access_log=False,  # addresses may hold tokens
        **options,
    )


class _Places:
    """The connections of one server that wait for a request, oldest first: the `silent` never made one."""

    def __init__(self, most: int):
        self._most = most
        self._silent: dict[_Connection, None] = {}
        self._idle: dict[_Connection, None] = {}
        self._num_away = 0

    def enter(self, new: _Connection) -> None:
        """Takes a connection in, for which another gives way if there are too many."""
        if len(new.connections) > self._most:
            self.turn_away(next(iter(self._silent or self._idle), new))
        self._silent[new] = None

    def rest(self, connection: _Connection) -> None:
        """Take note that its request is answered."""
        self._idle[connection] = None

    def leave(self, connection: _Connection) -> None:
        """Forget a connection that makes a request, or is gone."""
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)

    def turn_away(self, connection: _Connection) -> None:
        self.leave(connection)
        connection.transport.abort()
        if not self._num_away:
            asyncio.get_running_loop().call_later(_SAY_S, self._say)
        self._num_away += 1

    def _say(self) -> None:
        logger.warning("%d connections without a whole request were closed: too many, or too slow", self._num_away)
        self._num_away = 0


class _Connection(H11Protocol):
    """A connection on which the head of each request has HEAD_S to come."""

    places: ClassVar[_Places]
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.places.enter(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self.places.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._watch()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
            self.places.leave(self)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._unwatch()
        self.places.leave(self)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        self.places.rest(self)
        super().on_response_complete()  # handles the next request, if it has come
        if self.conn.trailing_data[0] and self.cycle.response_complete:  # a part of it has
            self._watch()

    def _watch(self) -> None:
        if self._due is None and not self.transport.is_closing():
            self._due = self.loop.call_later(HEAD_S, self.places.turn_away, self)

    def _unwatch(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
