"""The door of every HTTP server of a run: what a stranger may hold of it before anybody is known.

uvicorn closes what is idle. It has no limit of size or time for a request whose head is never whole, and where all
connections are taken it refuses whoever comes, so here those give way that have not asked anything."""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any, ClassVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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


class _Connection(HttpToolsProtocol):
    """A connection on which the head of each request has HEAD_S to come. `_num_held`: bytes that came since a head was
    whole, or a part of a body: what the parser holds at most, trailers included."""

    places: ClassVar[_Places]
    _due: asyncio.TimerHandle | None = None
    _num_held = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.places.enter(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self.places.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_held += len(data)
        super().data_received(data)
        if self._num_held > _MOST_HEAD_BYTES:
            self.places.turn_away(self)
        elif self._is_between and self.transport.get_protocol() is self:  # else it is a websocket now
            self._watch()

    def on_message_begin(self) -> None:
        self._num_held = 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._num_held = 0
        self._unwatch()
        self.places.leave(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_held = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_held = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # begins the next request, if it has come
        if self._is_between:
            self.places.rest(self)
        if self._num_held:  # a part of it has
            self._watch()

    @property
    def _is_between(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        if self._due is None and not self.transport.is_closing():
            self._due = self.loop.call_later(HEAD_S, self.places.turn_away, self)

    def _unwatch(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
