"""A minimal stand-in of an OpenEnv server: one session per WebSocket, and the schema over HTTP."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

SCHEMA = {
    "action": {
        "properties": {"number": {"type": "integer"}, "metadata": {"type": "object"}},
        "required": ["number"],
    }
}


def _answer(session: dict[str, Any], message: dict[str, Any], capacity: bool) -> dict[str, Any]:
    kind, data = message["type"], message.get("data")
    if not capacity:
        return {"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "full"}}
    if kind == "reset":
        assert data is not None
        session.update(number=random.Random(data["seed"]).randrange(10), steps=0, low=data.get("low", 0))
        return _seen("guess", None, False)
    if kind == "state":
        if data is not None:  # the real one refuses a field that it does not know
            return {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "Invalid message"}}
        return {"type": "state", "data": {"episode_id": "x", "step_count": session["steps"]}}
    if kind != "step" or data is None or set(data) != {"number"}:
        return {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "no action"}}
    if data["number"] == 13:
        return {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "the dice broke"}}
    session["steps"] += 1
    if data["number"] == session["number"]:
        return _seen("right", 1.0, True)
    return _seen("higher" if data["number"] < session["number"] else "lower", 0.0, False)


def _seen(hint: str, reward: float | None, done: bool) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": {"hint": hint}, "reward": reward, "done": done}}


@contextmanager
def guessing_server(capacity: bool = True) -> Iterator[str]:
    """The address of a server with a number from 0 to 9 to guess, which the seed decides."""

    def play(connection: ServerConnection) -> None:
        session: dict[str, Any] = {}
        for message in connection:
            connection.send(json.dumps(_answer(session, json.loads(message), capacity)))

    def over_http(connection: ServerConnection, request: Request) -> Response | None:
        if request.path != "/schema":
            return None
        return Response(200, "OK", Headers({"Content-Type": "application/json"}), json.dumps(SCHEMA).encode())

    with serve(play, "127.0.0.1", 0, process_request=over_http) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join(5)
