"""Strangers at a server's door, each beside a visitor who is served while they are there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse

import roll
from roll.utils import http_door

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers without reading the body, as those do who do not know the sender."""
    await PlainTextResponse(Request(scope).url.path)(scope, receive, send)


class Server(uvicorn.Server):
    """A server and those who come to it."""

    async def come(self, said: bytes) -> Streams:
        (socket,) = self.servers[0].sockets
        reader, writer = await asyncio.open_connection(*socket.getsockname())
        writer.write(said)
        return reader, writer

    async def visit(self) -> bytes:
        reader, writer = await self.come(b"GET /visitor HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer


def beside(attack: Callable[[Server], Awaitable[None]]) -> None:
    async def run() -> None:
        config = http_door.behind_door(app, host="127.0.0.1", port=0, lifespan="off", log_config=None, ws="none")
        server = Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        try:
            await asyncio.wait_for(attack(server), 60)
        finally:
            server.should_exit = server.force_exit = True
            await server.shutdown()

    asyncio.run(run())


def test_headers_without_an_end_are_cut_off() -> None:
    async def attack(server: Server) -> None:
        reader, writer = await server.come(b"GET / HTTP/1.1\r\nHost: x\r\n")
        writer.write((b"x" * 30 + b": " + b"y" * 30 + b"\r\n") * 3000)
        assert (await server.visit()).endswith(b"/visitor")
        with suppress(ConnectionError):  # it is closed with bytes unread
            assert b" 200 " not in await reader.read()

    beside(attack)


def test_beyond_the_limit_of_connections_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "MOST_CONNECTIONS", 4)

    async def attack(server: Server) -> None:
        held = [await server.come(b"POST /v1/chat") for _ in range(4)]
        assert b" 503 " in await server.visit()
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        assert (await server.visit()).endswith(b"/visitor")

    beside(attack)


def test_a_connection_without_a_whole_head_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "HEAD_S", 0.3)

    async def attack(server: Server) -> None:
        for said in (b"", b"POST /v1/chat"):
            reader, _ = await server.come(said)
            with suppress(ConnectionError):
                assert await reader.read() == b""
        assert (await server.visit()).endswith(b"/visitor")

    beside(attack)


def test_every_server_is_behind_the_door() -> None:
    files = Path(roll.__file__).parent.rglob("*.py")
    makers = [file.name for file in files if re.search(r"uvicorn\.(Config|run)\(", file.read_text(encoding="utf-8"))]
    assert makers == ["http_door.py"]
