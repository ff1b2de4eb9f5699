"""Strangers at a server's door, each beside a visitor who is served while they are there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse

import roll
from roll.utils import http_door

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers without reading the body, as those do who do not know the sender."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        await asyncio.sleep(0.4)
        await send({"type": "websocket.send", "text": scope["path"].rjust(6)})
        return
    await PlainTextResponse(Request(scope).url.path)(scope, receive, send)


class Server(uvicorn.Server):
    """A server and those who come to it."""

    async def come(self, said: bytes) -> Streams:
        (socket,) = self.servers[0].sockets
        reader, writer = await asyncio.open_connection(*socket.getsockname())
        writer.write(said)
        return reader, writer

    async def visit(self) -> None:
        reader, writer = await self.come(b"GET /visitor HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"/visitor")
        writer.close()


def beside(attack: Callable[[Server], Awaitable[None]], ws: Literal["auto", "none"] = "none") -> None:
    async def run() -> None:
        config = http_door.behind_door(app, host="127.0.0.1", port=0, lifespan="off", log_config=None, ws=ws)
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
        await server.visit()
        with suppress(ConnectionError):  # it is closed with bytes unread
            assert b" 200 " not in await reader.read()

    beside(attack)


def test_those_that_ask_nothing_give_way(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(http_door, "MOST_CONNECTIONS", 8)
    monkeypatch.setattr(http_door, "_SAY_S", 0.0)

    async def attack(server: Server) -> None:
        known, writer = await server.come(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await known.readuntil(b"/a")
        held = [await server.come(b"POST /v1/chat") for _ in range(30)]
        await server.visit()
        assert len(server.server_state.connections) <= 8
        ended = [reader for reader, _ in held if reader.at_eof() or reader.exception() is not None]
        assert len(ended) >= 22, "the oldest give way"
        writer.write(b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await known.readuntil(b"/b"), "one that has asked before stays"

    beside(attack)
    assert any("connections without a whole request" in text for text in caplog.messages)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HT",
        b"GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET / HT",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n12",
    ],
)
def test_a_request_that_is_never_whole_ends(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "HEAD_S", 0.1)

    async def attack(server: Server) -> None:
        reader, writer = await server.come(said)
        await server.visit()
        if said.startswith(b"POST"):
            await reader.readuntil(b"/")
            writer.write(b"3")  # drop by drop behind the answer
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            while True:
                await reader.readexactly(1)

    beside(attack)


def test_a_websocket_is_no_request_that_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("websockets")
    monkeypatch.setattr(http_door, "HEAD_S", 0.1)

    async def attack(server: Server) -> None:
        key = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        asks = b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        reader, writer = await server.come(asks + key)
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        silent, silent_writer = await server.come(b"")  # turned away after as long
        assert not await silent.read()
        assert (await reader.readexactly(8)).endswith(b"/ws"), "and then it is spoken on"
        for each in (writer, silent_writer):  # one that nobody holds closes
            each.close()

    beside(attack, ws="auto")


def test_every_server_is_behind_the_door() -> None:
    files = Path(roll.__file__).parent.rglob("*.py")
    makers = [file.name for file in files if re.search(r"uvicorn\.(Config|run)\(", file.read_text(encoding="utf-8"))]
    assert makers == ["http_door.py"]
