"""The endpoint of one process: a port on the loopback, and the sessions that are open behind it."""

import asyncio
import contextlib
import secrets
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI

from roll.pipeline.agentic.episode import Counts, EpisodeJob, EpisodeRules
from roll.pipeline.agentic.proxy.endpoint.app import MODEL, make_app
from roll.pipeline.agentic.proxy.endpoint.reward import Outcome
from roll.pipeline.agentic.proxy.endpoint.session import Session, session_key
from roll.pipeline.agentic.proxy.transcript.causes import Break
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.pipeline.agentic.proxy.transcript.render import Renderer
from roll.pipeline.agentic.proxy.transcript.transcript import Transcript
from roll.pipeline.agentic.sample_forms import ChatEncoder
from roll.types.rollout import Generate
from roll.utils.background import BackgroundTasks
from roll.utils.http_door import behind_door

ENDPOINT_NAME = 8  # characters of a session's id that name the endpoint
_MOST_KEPT = 4096  # rewards of sessions that are over


class QuietServer(uvicorn.Server):
    """Leaves the signals of the process to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def quiet_server(app: FastAPI) -> QuietServer:
    """A server of this app for the running event loop, behind the door."""
    return QuietServer(behind_door(app, loop="none", log_config=None, lifespan="off", ws="none"))


async def until_serving(server: uvicorn.Server) -> None:
    while not server.started:
        await asyncio.sleep(0.005)


class Endpoint:
    """Serves while the event loop runs on which it was started. A session is found by its own key alone. `host`: the
    address that it binds; `routers` hold more routes."""

    def __init__(self, encoder: ChatEncoder, generate: Generate, host: str = "127.0.0.1"):
        self._generate, self._host = generate, host
        self.name = secrets.token_hex(ENDPOINT_NAME // 2)
        self.routers: list[APIRouter] = []
        self._parser, self._renderer = Parser(encoder), Renderer(encoder)
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, Session] = {}
        self._rewards: dict[str, Outcome] = {}
        self._noted: set[tuple[str, str]] = set()
        self._starting = asyncio.Lock()
        self._tasks = BackgroundTasks()
        self._server: QuietServer | None = None
        self.port = 0

    async def start(self) -> None:
        """Binds a free port, once."""
        async with self._starting:
            if self._server is not None:
                return
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            listener = socket.create_server((self._host, 0), family=family, backlog=2048)
            self.port = listener.getsockname()[1]
            app = make_app(self)
            for router in self.routers:
                app.include_router(router)
            self._server = quiet_server(app)
            self._tasks.start(self._server.serve(sockets=[listener]))
            await until_serving(self._server)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True
            while self._server.started and self._server.servers and any(s.is_serving() for s in self._server.servers):
                await asyncio.sleep(0.01)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def key_of(self, session_id: str) -> str:
        return session_key(self._secret, session_id)

    def reward_key_of(self, session_id: str) -> str:
        """Return the key that gives the session its reward: another one than the policy's if the program runs in a
        sandbox, where what the policy runs may read the session's."""
        session = self.find(session_id)
        is_apart = session is not None and session.rules.config.sandbox
        return session_key(self._secret, session_id, "/reward") if is_apart else self.key_of(session_id)

    def reward_of(self, session_id: str) -> Outcome | None:
        return self._rewards.get(session_id)

    def open(
        self,
        job: EpisodeJob,
        attempt: int,
        rules: EpisodeRules,
        counts: Counts,
        task: Mapping[str, Any],
        is_outside: bool = False,
    ) -> Session:
        """A new session, which nobody can name before it is told."""
        session_id = self.name + secrets.token_hex(12)
        requests, breaks = Counter[str](), list[Break]()
        sides = rules.config.sides or ("",)
        session = Session(
            session_id=session_id,
            key=self.key_of(session_id),
            job=job,
            attempt=attempt,
            rules=rules,
            transcripts={side: Transcript(self._renderer, counts=requests, breaks=breaks) for side in sides},
            parser=self._parser,
            generate=self._generate,
            counts=counts,
            task=task,
            noted=self._noted,
            is_outside=is_outside,
        )
        self._sessions[session_id] = session
        return session

    async def close(self, session: Session) -> None:
        """Its key opens nothing any more."""
        await session.close()
        if self._sessions.pop(session.session_id, None) is not None and session.outcome is not None:
            self._rewards[session.session_id] = session.outcome
            while len(self._rewards) > _MOST_KEPT:
                del self._rewards[next(iter(self._rewards))]

    def environment(self, session: Session) -> dict[str, str]:
        """The variables by which unchanged programs find the session."""
        root = f"{self.url}/s/{session.session_id}"
        return {
            "OPENAI_BASE_URL": f"{root}/v1",
            "OPENAI_API_KEY": session.key,
            "ANTHROPIC_BASE_URL": root,
            "ANTHROPIC_API_KEY": session.key,
            "ROLL_MODEL": next(iter(session.sides), MODEL),
            "ROLL_REWARD_KEY": self.reward_key_of(session.session_id),
            "ROLL_PURPOSE": session.job.purpose,
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        }
