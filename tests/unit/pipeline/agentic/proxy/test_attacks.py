"""What one program may hold of the endpoint, each time beside another session that is answered meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from roll.pipeline.agentic.proxy.endpoint import bodies
from roll.pipeline.agentic.proxy.endpoint.session import Session
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


def test_bodies_that_never_end_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_MOST_OF_SENDER", 3 << 20)

    async def play(place: Place) -> None:
        held = [await begin(place, place.session, 1 << 20, b" " * 1000) for _ in range(4)]
        done, _ = await asyncio.wait(
            [asyncio.ensure_future(one.readline()) for one in held], return_when=asyncio.FIRST_COMPLETED
        )
        assert [b" 429 " in one.result() for one in done] == [True] * len(done)
        assert (await innocent(place)).status_code == 200

    serve(["yes"], play)


def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.1)

    async def play(place: Place) -> None:
        reader = await begin(place, place.session, 1000, b"{")
        assert (await innocent(place)).status_code == 200
        assert b" 408 " in await reader.readline()

    serve(["yes"], play)
