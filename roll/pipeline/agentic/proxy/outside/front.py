"""The front of a run whose sessions are played from outside: the one port at which programs take sessions, and through
which each reaches the worker that has its own."""

import asyncio
import hmac
import json
import logging
import os
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.background import BackgroundTask

from roll.pipeline.agentic.proxy.endpoint.app import add_errors, key_in, until_gone
from roll.pipeline.agentic.proxy.endpoint.errors import Refusal, not_allowed
from roll.pipeline.agentic.proxy.endpoint.fields import read_body, received
from roll.pipeline.agentic.proxy.endpoint.server import ENDPOINT_NAME, QuietServer, quiet_server, until_serving
from roll.pipeline.agentic.proxy.endpoint.session import session_of
from roll.utils.background import BackgroundTasks, start

logger = logging.getLogger(__name__)

FILE = "agent_endpoint.json"
SECRET_HEADER = "x-roll-secret"  # between the front and its workers
LATE_S = 60.0  # a worker that has not reported for so long is gone
_FAREWELL_S = 2.0  # that requests have to end when the run does
_WORKER_S = 5.0  # that a worker may take to hand out a session
_LOOK_S = 0.2  # between two looks for a session, while a program waits for one
_HOP_BY_HOP = frozenset({"host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
                         "content-length", SECRET_HEADER})  # fmt: skip


@dataclass(frozen=True)
class FrontAddress:
    """How workers reach the front. `node`: the address of its machine."""

    url: str
    node: str
    secret: str


class WorkerReport(BaseModel):
    """Report of a worker about itself, at every change and now and then. `waiting`: sessions that nobody has taken,
    with their place in line."""

    name: str
    url: str
    waiting: dict[str, list[int]]


class SessionsBody(BaseModel):
    """Request of a program for a session."""

    model_config = ConfigDict(extra="forbid")

    wait_s: float = Field(0.0, ge=0, le=60)


def check_secret(request: Request, secret: str) -> None:
    """Raises Refusal for a request that is not of the front, or of a worker, of this run."""
    if not hmac.compare_digest(request.headers.get(SECRET_HEADER, "").encode(), secret.encode()):
        raise not_allowed()


class Front:
    """Serves on the event loop on which it is started."""

    def __init__(self, listen: str, folder: Path):
        """`listen`: host:port, port 0 for any that is free. The run's token is kept in a file of `folder`."""
        host, _, port = listen.rpartition(":")
        self._host, self._port, self._file = host.strip("[]"), int(port), folder / FILE
        self._token, self._secret = secrets.token_urlsafe(32), secrets.token_hex(32)
        if self._file.is_file():  # of an earlier start of this run: programs need not ask for another
            self._token = json.loads(self._file.read_text(encoding="utf-8"))["token"]
        self._workers: dict[str, tuple[WorkerReport, float]] = {}  # the newest report of each, and when it came
        self._taking = asyncio.Lock()
        self._client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None), trust_env=False)
        self._tasks = BackgroundTasks()
        self._server: QuietServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    async def start(self, node: str) -> FrontAddress:
        """Binds the port and writes where it is. Raises OSError if the port is taken."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        both = self._host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server((self._host, self._port), family=family, backlog=2048, dualstack_ipv6=both)
        port = listener.getsockname()[1]
        self._server = quiet_server(self._app())
        self._serving = self._tasks.start(self._server.serve(sockets=[listener]))
        await until_serving(self._server)
        reached = node if self._host in ("0.0.0.0", "::") else self._host
        url = f"http://{f'[{reached}]' if ':' in reached else reached}:{port}"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_suffix(".part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as text:
            json.dump({"url": url, "token": self._token}, text)
        part.replace(self._file)
        logger.info("sessions for programs from outside: POST %s/sessions; the token is in %s", url, self._file)
        return FrontAddress(url, node, self._secret)

    async def stop(self) -> None:
        """Tells those that wait for a session that the run is over, and closes the port."""
        self._over.set()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait({self._serving}, timeout=_FAREWELL_S)
            self._server.force_exit = True
            await asyncio.wait({self._serving}, timeout=_FAREWELL_S)
        await self._client.aclose()

    def _app(self) -> FastAPI:
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        app.add_api_route("/workers", self._reported, methods=["POST"])
        app.add_api_route("/sessions", self._sessions, methods=["POST"])
        app.add_api_route("/sessions/{session_id}/reward", self._forward, methods=["POST"])
        app.add_api_route("/sessions/{session_id}", self._forward, methods=["DELETE"])
        for route in ("/s/{session_id}/{path:path}", "/v1/{path:path}"):
            app.add_api_route(route, self._forward, methods=["GET", "POST"])
        add_errors(app)
        return app

    async def _reported(self, request: Request) -> Response:
        check_secret(request, self._secret)
        report: WorkerReport = read_body(WorkerReport, await received(request))
        self._workers[report.name] = report, time.monotonic()
        return Response(status_code=204)

    async def _sessions(self, request: Request) -> Response:
        """Hands the session that has waited longest to a program; 204 if none came within `wait_s`."""
        if not hmac.compare_digest(key_in(request.headers).encode(), self._token.encode()):
            raise Refusal(401, f"The key is not the token of this run, which is in {FILE} of its output_dir.",
                          "invalid_api_key")  # fmt: skip
        asked: SessionsBody = read_body(SessionsBody, await received(request) or b"{}")
        until = time.monotonic() + asked.wait_s
        gone = start(until_gone(request))
        try:
            while (taken := None if gone.done() else await self._taken()) is None:
                if self._over.is_set():
                    raise Refusal(410, "The run is over.", "run_over")
                if gone.done() or time.monotonic() >= until:
                    return Response(status_code=204, headers={"Retry-After": "1"})
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), _LOOK_S)
        finally:
            gone.cancel()
        root = f"{request.url.scheme}://{request.headers.get('host', request.url.netloc)}/s/{taken['session']}"
        described = {**taken, "base_url": f"{root}/v1", "anthropic_base_url": root}
        return Response(json.dumps(described), media_type="application/json")

    async def _taken(self) -> dict[str, Any] | None:
        async with self._taking:
            due = time.monotonic() - LATE_S
            self._workers = {name: known for name, known in self._workers.items() if known[1] > due}
            reports = [report for report, _ in self._workers.values()]
            waiting = sorted((order, name, one.name) for one in reports for name, order in one.waiting.items())
            for _, session_id, worker in waiting:
                report, _ = self._workers[worker]
                if report.waiting.pop(session_id, None) is None:  # its worker is silent
                    continue
                headers, url = {SECRET_HEADER: self._secret}, f"{report.url}/line/take"
                try:
                    reply = await self._client.post(
                        url, json={"session": session_id}, headers=headers, timeout=_WORKER_S
                    )
                except httpx.HTTPError:
                    report.waiting.clear()  # until it reports again
                    continue
                if reply.status_code == 200:
                    return reply.json()
        return None

    async def _forward(self, request: Request) -> Response:
        """Forward a request to the session's worker, and return its reply. It checks the key itself."""
        session_id = request.path_params.get("session_id") or session_of(key_in(request.headers))
        path = request.url.path
        if path.startswith("/sessions/"):
            path = f"/s/{session_id}" + ("/v1/reward" if path.endswith("/reward") else "")
        if (known := self._workers.get(session_id[:ENDPOINT_NAME])) is None:
            raise not_allowed()
        headers = [(name, value) for name, value in request.headers.raw if name.decode() not in _HOP_BY_HOP]
        body = await received(request)
        sent = self._client.build_request(request.method, known[0].url + path, content=body, headers=headers)
        gone, work = start(until_gone(request)), start(self._client.send(sent, stream=True))
        try:
            await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return Response(status_code=499)
            reply = work.result()
        except httpx.HTTPError:
            raise Refusal(410, "The session is lost: its worker died. Its attempt is played anew, as another session.",
                          "session_lost") from None  # fmt: skip
        finally:
            gone.cancel()
            work.cancel()
        kept = {name: value for name, value in reply.headers.items() if name not in _HOP_BY_HOP}
        length = {"content-length": reply.headers["content-length"]} if "content-length" in reply.headers else {}
        closing = BackgroundTask(reply.aclose)
        return StreamingResponse(reply.aiter_raw(), reply.status_code, kept | length, background=closing)
