"""The endpoint of one process: a port on the loopback, and the sessions that are open behind it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import uvicorn

from roll.pipeline.agentic.episode import Counts, EpisodeJob, EpisodeRules
from roll.pipeline.agentic.proxy.endpoint.app import MODEL, make_app
from roll.pipeline.agentic.proxy.endpoint.session import Session, session_key
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.pipeline.agentic.proxy.transcript.render import Renderer
from roll.pipeline.agentic.proxy.transcript.transcript import Transcript
from roll.pipeline.agentic.sample_forms import ChatEncoder
from roll.types.rollout import Generate
from roll.utils.background import BackgroundTasks


class _Server(uvicorn.Server):
    """Leaves the signals of the process to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Endpoint:
    """Serves while the event loop runs on which it was started. A session is found by its own key alone."""

    def __init__(self, encoder: ChatEncoder, generate: Generate):
        self._encoder, self._generate = encoder, generate
        self._parser, self._renderer = Parser(encoder), Renderer(encoder)
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, Session] = {}
        self._starting = asyncio.Lock()
        self._tasks = BackgroundTasks()
        self._server: _Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Binds a free port of 127.0.0.1, once."""
        async with self._starting:
            if self._server is not None:
                return
            listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
            self.port = listener.getsockname()[1]
            config = uvicorn.Config(
                make_app(self._sessions.get), loop="none", log_config=None, access_log=False, lifespan="off"
            )
            self._server = _Server(config)
            self._tasks.start(self._server.serve(sockets=[listener]))
            while not self._server.started:
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Closes the port."""
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True
            while self._server.started and self._server.servers and any(s.is_serving() for s in self._server.servers):
                await asyncio.sleep(0.01)

    def open(
        self, job: EpisodeJob, attempt: int, rules: EpisodeRules, counts: Counts, task: Mapping[str, Any]
    ) -> Session:
        """A new session, which nobody can name before it is told."""
        session_id = secrets.token_hex(16)
        session = Session(
            session_id=session_id,
            key=session_key(self._secret, session_id),
            job=job,
            attempt=attempt,
            rules=rules,
            transcript=Transcript(self._renderer),
            parser=self._parser,
            generate=self._generate,
            counts=counts,
            task=task,
        )
        self._sessions[session_id] = session
        return session

    async def close(self, session: Session) -> None:
        """Its key opens nothing any more."""
        await session.close()
        self._sessions.pop(session.session_id, None)

    def environment(self, session: Session) -> dict[str, str]:
        """The variables by which unchanged programs find the session."""
        root = f"http://127.0.0.1:{self.port}/s/{session.session_id}"
        return {
            "OPENAI_BASE_URL": f"{root}/v1",
            "OPENAI_API_KEY": session.key,
            "ANTHROPIC_BASE_URL": root,
            "ANTHROPIC_API_KEY": session.key,
            "ROLL_MODEL": MODEL,
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        }
