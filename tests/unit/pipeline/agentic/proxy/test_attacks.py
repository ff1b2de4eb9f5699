"""What one program may hold of the endpoint, each time beside another session that is answered meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from roll.pipeline.agentic.proxy.endpoint import fields
from roll.pipeline.agentic.proxy.endpoint.session import Session
from roll.pipeline.agentic.sample_forms import ChatEncoder
from tests.unit.pipeline.agentic.proxy.parts import ASK, Place, open_session, serve
from tests.unit.pipeline.agentic.proxy.test_clients import post


def innocent(place: Place) -> Any:
    """The request of another session."""
    return post(
        Place(place.endpoint, open_session(place.endpoint), place.engine), "/chat/completions", {"messages": ASK}
    )


async def begin(place: Place, session: Session, length: int, said: bytes) -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection("127.0.0.1", place.endpoint.port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: {session.key}\r\n"
    writer.write(f"{head}Content-Length: {length}\r\n\r\n".encode() + said)
    await writer.drain()
    reader.writer = writer  # type: ignore[attr-defined]  # else it is collected, and closes
    return reader


def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "BODY_S", 0.1)

    async def play(place: Place) -> None:
        reader = await begin(place, place.session, 1000, b"{")
        assert (await innocent(place)).status_code == 200
        assert b" 408 " in await reader.readline()

    serve(["yes"], play)


@pytest.mark.parametrize("route", ["/chat/completions", "/messages/count_tokens"])
def test_a_long_message_holds_nobody_up(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release, encode = threading.Event(), threading.Event(), ChatEncoder.encode

    def slowly(self: ChatEncoder, text: str) -> Any:
        if len(text) > 30_000:
            begun.set()
            assert release.wait(60)
        return encode(self, text)

    monkeypatch.setattr(ChatEncoder, "encode", slowly)

    async def play(place: Place) -> None:
        body = {"messages": [{"role": "user", "content": "7 " * 20_000}], "max_tokens": 9}
        long = asyncio.create_task(post(place, route, body))
        assert await asyncio.to_thread(begun.wait, 60)
        assert (await innocent(place)).status_code == 200
        release.set()
        assert (await long).status_code == (200 if "count" in route else 400)

    serve(["yes"], play)
