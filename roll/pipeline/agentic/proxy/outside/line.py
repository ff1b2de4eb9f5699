"""The line of a worker: sessions that wait for a program from outside to take them."""

import asyncio
import json
import logging
from contextlib import suppress

import httpx
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from roll.pipeline.agentic.env_calls import EnvCrash
from roll.pipeline.agentic.episode import EpisodeJob
from roll.pipeline.agentic.proxy.endpoint.app import MODEL
from roll.pipeline.agentic.proxy.endpoint.fields import read_body, received
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.endpoint.session import Session
from roll.pipeline.agentic.proxy.outside.front import SECRET_HEADER, FrontAddress, WorkerReport, check_secret
from roll.utils.background import BackgroundTasks

logger = logging.getLogger(__name__)

_REPORT_S = 2.0
_LOOK_S = 1.0


class TakeBody(BaseModel):
    """The front's order: this session is taken."""

    session: str


class Line:
    """`wait` and `play` are called for every session; the front hears of those that wait, and says which is taken."""

    def __init__(self, endpoint: Endpoint, front: FrontAddress, idle_timeout_s: float):
        self._endpoint, self._front, self._idle_timeout_s = endpoint, front, idle_timeout_s
        self._waiting: dict[str, tuple[Session, EpisodeJob, asyncio.Event]] = {}
        self._changed = asyncio.Event()
        self._reporting: asyncio.Task[None] | None = None
        self._tasks = BackgroundTasks()
        router = APIRouter()
        router.add_api_route("/line/take", self._take, methods=["POST"])
        endpoint.routers.append(router)

    async def wait(self, session: Session, job: EpisodeJob) -> None:
        """Returns when a program has taken the session."""
        self._reporting = self._reporting or self._tasks.start(self._report())
        taken = asyncio.Event()
        self._waiting[session.session_id] = session, job, taken
        self._changed.set()
        try:
            await taken.wait()
        finally:
            self._waiting.pop(session.session_id, None)
            self._changed.set()

    async def play(self, session: Session) -> None:
        """Returns when the program has given a reward, or the session has failed. Raises EnvCrash for a program that is
        not heard of any more."""
        loop = asyncio.get_running_loop()
        session.last_request_s = loop.time()
        while not (session.rewarded.is_set() or session.error or session.failure):
            if session.is_waiting:
                session.last_request_s = loop.time()
            if loop.time() - session.last_request_s > self._idle_timeout_s:
                raise EnvCrash(
                    f"the program sent nothing for {self._idle_timeout_s:g} s (agent_endpoint.idle_timeout_s)"
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(session.rewarded.wait(), min(_LOOK_S, self._idle_timeout_s))

    async def _take(self, request: Request) -> Response:
        check_secret(request, self._front.secret)
        order: TakeBody = read_body(TakeBody, await received(request))
        if order.session not in self._waiting:
            return Response(status_code=409)
        session, job, taken = self._waiting.pop(order.session)
        taken.set()
        described = {  # NaN and lone surrogates as Python writes them
            "session": session.session_id,
            "api_key": session.key,
            "model": next(iter(session.sides), MODEL),
            "task": dict(session.task),
            "tag": job.tag,
            "purpose": job.purpose,
            "expires_s": self._idle_timeout_s,
        }
        return Response(json.dumps(described), media_type="application/json")

    async def _report(self) -> None:
        """Tells the front of every change, and now and then that this worker is there."""
        headers = {SECRET_HEADER: self._front.secret}
        was_told = False
        async with httpx.AsyncClient(base_url=self._front.url, headers=headers, timeout=30, trust_env=False) as client:
            while True:
                self._changed.clear()
                waiting = {name: [job.order, job.group_id, job.index] for name, (_, job, _) in self._waiting.items()}
                report = WorkerReport(name=self._endpoint.name, url=self._endpoint.url, waiting=waiting)
                try:
                    reply = await client.post("/workers", json=report.model_dump())
                    reply.raise_for_status()
                except httpx.HTTPError as error:
                    if not was_told:
                        logger.warning("agent_endpoint: %s does not answer (%s); trying again", self._front.url, error)
                    was_told = True
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _REPORT_S)
