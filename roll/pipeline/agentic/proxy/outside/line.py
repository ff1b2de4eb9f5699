"""The line of a worker: sessions that wait for a program from outside to take them."""

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from roll.errors import EnvError
from roll.pipeline.agentic.env_calls import EnvCrash
from roll.pipeline.agentic.episode import EpisodeJob
from roll.pipeline.agentic.proxy.endpoint.app import MODEL
from roll.pipeline.agentic.proxy.endpoint.bodies import Bodies
from roll.pipeline.agentic.proxy.endpoint.chat import read_body
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.endpoint.session import Session
from roll.pipeline.agentic.proxy.outside.front import SECRET_HEADER, FrontAddress, check_secret
from roll.utils.background import BackgroundTasks

logger = logging.getLogger(__name__)

_REPORT_S = 2.0
_LOOK_S = 1.0


class TakeBody(BaseModel):
    """The front's order: this session is taken, for a task of the program's own if there is one."""

    session: str
    task: dict[str, Any] | None = None


@dataclass(eq=False)
class _Attempt:
    session: Session
    job: EpisodeJob
    taken: asyncio.Future[None]
    since_s: float

    @property
    def order(self) -> list[int]:
        return [self.job.order, self.job.group_id, self.job.index]


class Line:
    """`wait` and `play` are called for every session; the front hears of those that wait, and says which is taken."""

    def __init__(self, endpoint: Endpoint, front: FrontAddress, idle_timeout_s: float, group_timeout_s: float):
        self._endpoint, self._front, self._idle_timeout_s = endpoint, front, idle_timeout_s
        self._group_timeout_s = group_timeout_s
        self._waiting: dict[str, _Attempt] = {}
        self._playing: dict[str, tuple[Session, EpisodeJob]] = {}
        self._returned: set[str] = set()
        self._changed = asyncio.Event()
        self._reporting: asyncio.Task[None] | None = None
        self._bodies = Bodies()
        self._tasks = BackgroundTasks()
        router = APIRouter()
        router.add_api_route("/line/take", self._take, methods=["POST"])
        router.add_api_route("/line/return", self._take_back, methods=["POST"])
        endpoint.routers.append(router)

    async def wait(self, session: Session, job: EpisodeJob) -> None:
        """Returns when a program has taken the session. Raises EnvError when the group was begun, and left."""
        self._reporting = self._reporting or self._tasks.start(self._report())
        loop = asyncio.get_running_loop()
        attempt = _Attempt(session, job, loop.create_future(), loop.time())
        self._waiting[session.session_id] = attempt
        self._changed.set()
        try:
            await attempt.taken
        finally:
            del self._waiting[session.session_id]
            self._changed.set()

    async def play(self, session: Session, job: EpisodeJob) -> bool:
        """Returns when the program has given a reward, or the session has failed; False if it never reached a program
        and waits again. Raises EnvCrash for a program that is not heard of any more."""
        self._playing[session.session_id] = session, job
        try:
            await self._until_over(session)
            return session.session_id not in self._returned
        finally:
            del self._playing[session.session_id]
            self._returned.discard(session.session_id)
            self._changed.set()

    async def _until_over(self, session: Session) -> None:
        loop = asyncio.get_running_loop()
        session.last_request_s = loop.time()
        while session.session_id not in self._returned and not (
            session.rewarded.is_set() or session.error or session.failure
        ):
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
        order: TakeBody = read_body(TakeBody, await self._bodies.read(request, "front"))
        attempt = self._waiting.get(order.session)
        if attempt is None or attempt.taken.done():
            return Response(status_code=409)
        session, job = attempt.session, attempt.job
        if order.task is not None:
            session.task = {**order.task, "seed": job.env_seed}
        attempt.taken.set_result(None)
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

    async def _take_back(self, request: Request) -> Response:
        """A session whose program had gone before it heard of it."""
        check_secret(request, self._front.secret)
        order: TakeBody = read_body(TakeBody, await self._bodies.read(request, "front"))
        if order.session in self._playing and not self._playing[order.session][0].num_requests:
            self._returned.add(order.session)
        return Response(status_code=204)

    async def _report(self) -> None:
        """Tells the front of every change, and now and then that this worker is there."""
        headers = {SECRET_HEADER: self._front.secret}
        was_told = False
        async with httpx.AsyncClient(base_url=self._front.url, headers=headers, timeout=30, trust_env=False) as client:
            while True:
                self._changed.clear()
                waiting = {
                    name: (one.job.group, one.order) for name, one in self._waiting.items() if not one.taken.done()
                }
                playing = sorted({job.group for _, job in self._playing.values()})
                report = {
                    "name": self._endpoint.name,
                    "url": self._endpoint.url,
                    "waiting": waiting,
                    "playing": playing,
                }
                try:
                    reply = await client.post("/workers", json=report)
                    reply.raise_for_status()
                    self._fail(set(reply.json()["late"]))
                except httpx.HTTPError as error:
                    if not was_told:
                        logger.warning("agent_endpoint: %s does not answer (%s); trying again", self._front.url, error)
                    was_told = True
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _REPORT_S)

    def _fail(self, groups: set[str]) -> None:
        due = asyncio.get_running_loop().time() - self._group_timeout_s
        for attempt in self._waiting.values():
            if attempt.job.group in groups and attempt.since_s <= due and not attempt.taken.done():
                attempt.taken.set_exception(
                    EnvError("no program took this session, though others of its group were taken "
                             "(agent_endpoint.group_timeout_s)")
                )  # fmt: skip
