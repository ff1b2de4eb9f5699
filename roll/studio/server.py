"""Access control: every request, of pages, files, data and websockets alike, passes here before anything else."""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import uvicorn
from fastapi import FastAPI
from nicegui import ui
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roll.report.palette import LOGO
from roll.studio.launch import Address, Launched
from roll.studio.pages import builder, compare, report, rollout_data, rollouts, run, runs
from roll.studio.rollout_index import RolloutIndexes
from roll.studio.run_list import RunList
from roll.utils.http_door import behind_door

_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Gate:
    """An ASGI application in front of another one.

    A request that has the token in its address (`?token=`) gets a cookie and the address without it; all others need
    that cookie, or get 401. A request that a page of another place makes is refused in any case."""

    def __init__(self, app: ASGIApp, token: str, port: int):
        self._app, self._token = app, token
        self._cookie = f"roll_studio_{port}"  # cookies of two ports of a machine are sent to both
        self._session = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif (answer := self._answer(scope)) is not None:
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, _with_headers(send))

    def _answer(self, scope: Scope) -> Response | None:
        """Return the reply that refuses or redirects a request; None: the application may reply."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return PlainTextResponse("A page of another place asks.", 403)
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        token = next((value for name, value in query if name == "token"), None)
        if token is not None and hmac.compare_digest(token.encode(), self._token.encode()):
            return self._admitted(scope, [(name, value) for name, value in query if name != "token"])
        held = _cookies(headers.getlist("cookie")).get(self._cookie, "")
        if hmac.compare_digest(held.encode(), self._session.encode()):
            return None
        return PlainTextResponse("Open the address with the token that roll studio printed.", 401)

    def _admitted(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        address = "/" + scope["path"].lstrip("/") + (f"?{urlencode(query)}" if query else "")
        answer = RedirectResponse(address, 303)
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="lax")
        return answer


def _cookies(headers: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for header in headers:
        try:
            values |= {name: morsel.value for name, morsel in SimpleCookie(header).items()}
        except CookieError:
            continue
    return values


def _with_headers(send: Send) -> Send:
    """Add headers that limit what a browser may do with the page, unless the reply sets them."""

    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_more


# The server: NiceGUI's pages and the data that they fetch, behind the gate.


def serve(folders: Sequence[Path], place: Address, listener: socket.socket) -> None:
    """Serves the studio until a signal ends it."""
    gate = Gate(application(folders), place.token, listener.getsockname()[1])
    config = behind_door(gate, ws="wsproto", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


def application(folders: Sequence[Path]) -> FastAPI:
    """Pages and data, open to whoever asks."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    run_list = RunList(folders)
    launches: dict[str, Launched] = {}
    runs.add(run_list)
    run.add(run_list, launches)
    compare.add(run_list)
    builder.add(folders[0], launches, run_list)
    indexes = RolloutIndexes(run_list)
    rollouts.add(indexes, run_list)
    rollout_data.add(app, indexes)
    report.add(app, run_list)
    ui.run_with(app, title="roll studio", favicon=LOGO, dark=None, tailwind=False, show_welcome_message=False)
    return app
