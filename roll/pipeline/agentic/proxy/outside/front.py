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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.background import BackgroundTask

from roll.pipeline.agentic.proxy.endpoint.app import add_errors, key_in, until_gone
from roll.pipeline.agentic.proxy.endpoint.bodies import Bodies
from roll.pipeline.agentic.proxy.endpoint.chat import read_body
from roll.pipeline.agentic.proxy.endpoint.errors import Refusal, not_allowed
from roll.pipeline.agentic.proxy.endpoint.server import ENDPOINT_NAME, QuietServer, quiet_server, until_serving
from roll.pipeline.agentic.proxy.endpoint.session import session_of
from roll.utils.background import BackgroundTasks, start

logger = logging.getLogger(__name__)

FILE = "agent_endpoint.json"
SECRET_HEADER = "x-roll-secret"  # between the front and its workers
LATE_S = 60.0  # a worker that has not reported for so long is gone
_MOST_GROUPS = 4096  # that are known before those that are over are forgotten
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


@dataclass
class _Worker:
    """`waiting`: the group and the place in line of each session that nobody has taken; `playing`: groups of others."""

    url: str
    seen_s: float
    waiting: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    playing: frozenset[str] = frozenset()


@dataclass
class _Group:
    """A group of which a session was taken. `key`: the name that a program gave it; "" if none did."""

    key: str
    last_taken_s: float


class WorkerReport(BaseModel):
    """Report of a worker about itself, at every change and now and then."""

    name: str
    url: str
    waiting: dict[str, tuple[str, list[int]]]
    playing: frozenset[str]


class SessionsBody(BaseModel):
    """Request of a program for a session."""

    model_config = ConfigDict(extra="forbid")

    task: dict[str, Any] | None = None
    group: str | None = Field(None, min_length=1, max_length=200)
    wait_s: float = Field(0.0, ge=0, le=60)


def check_secret(request: Request, secret: str) -> None:
    """Raises Refusal for a request that is not of the front, or of a worker, of this run."""
    if not hmac.compare_digest(request.headers.get(SECRET_HEADER, "").encode(), secret.encode()):
        raise not_allowed()


class Front:
    """Serves on the event loop on which it is started."""

    def __init__(self, listen: str, folder: Path, group_timeout_s: float):
        """`listen`: host:port, port 0 for any that is free. The run's token is kept in a file of `folder`."""
        host, _, port = listen.rpartition(":")
        self._host, self._port, self._file = host.strip("[]"), int(port), folder / FILE
        self._group_timeout_s = group_timeout_s
        self._token, self._secret = _known_token(self._file) or secrets.token_urlsafe(32), secrets.token_hex(32)
        self._workers: dict[str, _Worker] = {}
        self._groups: dict[str, _Group] = {}
        self._taking = asyncio.Lock()
        self._client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None), trust_env=False)
        self._bodies = Bodies()
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
        _write_private(self._file, {"url": url, "token": self._token})
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
        app.add_api_route("/sessions/{session_id}/reward", self._reward, methods=["POST"])
        app.add_api_route("/sessions/{session_id}", self._given_up, methods=["DELETE"])
        for route in ("/s/{session_id}/{path:path}", "/v1/{path:path}"):
            app.add_api_route(route, self._passed_on, methods=["GET", "POST"])
        add_errors(app)
        return app

    async def _reported(self, request: Request) -> Response:
        """A worker's report. The reply names groups that were begun, and left too long."""
        check_secret(request, self._secret)
        report: WorkerReport = read_body(WorkerReport, await self._bodies.read(request, "workers"))
        self._workers[report.name] = _Worker(report.url, time.monotonic(), report.waiting, report.playing)
        due = time.monotonic() - self._group_timeout_s
        waiting = {group for group, _ in report.waiting.values()}
        if len(self._groups) > _MOST_GROUPS:
            alive = self._alive()
            self._groups = {name: known for name, known in self._groups.items() if name in alive}
        late = [name for name in waiting if name in self._groups and self._groups[name].last_taken_s < due]
        return JSONResponse({"late": late})

    async def _sessions(self, request: Request) -> Response:
        """Hands the session that has waited longest to a program; 204 if none came within `wait_s`."""
        if not hmac.compare_digest(key_in(request.headers).encode(), self._token.encode()):
            raise Refusal(401, f"The key is not the token of this run, which is in {FILE} of its output_dir.",
                          "invalid_api_key")  # fmt: skip
        asked: SessionsBody = read_body(SessionsBody, await self._bodies.read(request, "sessions") or b"{}")
        if asked.task is not None and asked.group is None:
            raise Refusal(400, "group: sessions with a task of their own need a group, within which rewards are "
                          "compared: the same name for each session of this task.", param="group")  # fmt: skip
        until, none = time.monotonic() + asked.wait_s, Response(status_code=204, headers={"Retry-After": "1"})
        gone = start(until_gone(request))
        try:
            while (taken := await self._taken(asked)) is None:
                if self._over.is_set():
                    raise Refusal(410, "The run is over.", "run_over")
                if time.monotonic() >= until:
                    return none
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), _LOOK_S)
                if gone.done():
                    return none
            if gone.done():
                await self._returned(str(taken["session"]))
                return none
        finally:
            gone.cancel()
        root = f"{request.url.scheme}://{request.headers.get('host', request.url.netloc)}/s/{taken['session']}"
        described = {**taken, "base_url": f"{root}/v1", "anthropic_base_url": root}
        return Response(json.dumps(described), media_type="application/json")

    async def _taken(self, asked: SessionsBody) -> dict[str, Any] | None:
        """A session that is taken now, as its worker describes it; None if none waits for such a program."""
        silent: list[_Worker] = []
        async with self._taking:
            for session_id, group, worker in self._candidates(asked.group or ""):
                if worker in silent:
                    continue
                order = json.dumps({"session": session_id, "task": asked.task})
                try:
                    reply = await self._ask_worker(worker, "take", order)
                except httpx.HTTPError:
                    silent.append(worker)
                    worker.waiting.clear()  # until it reports again
                    continue
                worker.waiting.pop(session_id, None)
                if reply.status_code == 200:
                    key = self._groups[group].key if group in self._groups else asked.group or ""
                    self._groups[group] = _Group(key, time.monotonic())
                    return reply.json()
        return None

    async def _ask_worker(self, worker: _Worker, what: str, order: str) -> httpx.Response:
        headers = {SECRET_HEADER: self._secret, "content-type": "application/json"}
        return await self._client.post(f"{worker.url}/line/{what}", content=order, headers=headers, timeout=_WORKER_S)

    async def _returned(self, session_id: str) -> None:
        """Has a session wait again whose program has gone without it."""
        if (worker := self._workers.get(session_id[:ENDPOINT_NAME])) is not None:
            with suppress(httpx.HTTPError):
                await self._ask_worker(worker, "return", json.dumps({"session": session_id}))

    def _alive(self) -> set[str]:
        """Groups of which a session waits or is played."""
        workers = self._workers.values()
        return {group for one in workers for group, _ in one.waiting.values()}.union(*(one.playing for one in workers))

    def _candidates(self, key: str) -> list[tuple[str, str, _Worker]]:
        """Sessions that wait, oldest first: those of the group that the key names, or else of groups nobody began; for
        programs without a key, of groups that have none."""
        due = time.monotonic() - LATE_S
        self._workers = {name: worker for name, worker in self._workers.items() if worker.seen_s > due}
        waiting = [
            (order, session_id, group, worker)
            for worker in self._workers.values()
            for session_id, (group, order) in worker.waiting.items()
        ]
        if not waiting:
            return []
        keys = {group: known.key for group, known in self._groups.items()}
        alive = self._alive()
        if not key:
            fit = {group for _, _, group, _ in waiting if not keys.get(group)}
        elif any(known == key and group in alive for group, known in keys.items()):
            fit = {group for group in keys if keys[group] == key}
        else:
            fit = {group for _, _, group, _ in waiting if group not in keys}
        waiting.sort(key=lambda entry: entry[:2])
        return [(session_id, group, worker) for _, session_id, group, worker in waiting if group in fit]

    async def _reward(self, request: Request, session_id: str) -> Response:
        return await self._forward(request, session_id, f"/s/{session_id}/v1/reward")

    async def _given_up(self, request: Request, session_id: str) -> Response:
        return await self._forward(request, session_id, f"/s/{session_id}")

    async def _passed_on(self, request: Request) -> Response:
        session_id = request.path_params.get("session_id") or session_of(key_in(request.headers))
        return await self._forward(request, session_id, request.url.path)

    async def _forward(self, request: Request, session_id: str, path: str) -> Response:
        """Forward a request to the session's worker, and return its reply. It checks the key itself."""
        worker = self._workers.get(session_id[:ENDPOINT_NAME])
        if worker is None:
            raise not_allowed()
        headers = [(name, value) for name, value in request.headers.raw if name.decode() not in _HOP_BY_HOP]
        body = await self._bodies.read(request, session_id)
        try:
            sent = self._client.build_request(request.method, worker.url + path, content=body, headers=headers)
        except httpx.InvalidURL:
            raise Refusal(404, "There is no such route.", "not_found") from None
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
            if not work.done():
                work.cancel()
        kept = {name: value for name, value in reply.headers.items() if name not in _HOP_BY_HOP}
        length = {"content-length": reply.headers["content-length"]} if "content-length" in reply.headers else {}
        closing = BackgroundTask(reply.aclose)
        return StreamingResponse(reply.aiter_raw(), reply.status_code, kept | length, background=closing)


def _known_token(file: Path) -> str | None:
    """The token of an earlier start of this run, so that programs need not ask for another."""
    try:
        token = json.loads(file.read_text(encoding="utf-8"))["token"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return token if isinstance(token, str) and len(token) > 20 else None


def _write_private(file: Path, value: Mapping[str, str]) -> None:
    """Writes a file that its owner alone can read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as text:
        json.dump(value, text)
    part.replace(file)
