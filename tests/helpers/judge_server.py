"""A judge on the loopback, which answers as told: the part of OpenAI's protocol that a judge needs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Act:
    """One answer of the server. `body` None: the connection is closed without a word; `waits`: no answer before the
    server ends."""

    body: bytes | None = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    waits: bool = False


CLOSES, HANGS = Act(body=None), Act(waits=True)


def says(text: object, **more: Any) -> Act:
    """A completion. Example: says("yes", finish_reason="length")."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"} | more
    usage = {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}
    return sends(
        {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    )


def sends(body: object, status: int = 200, **headers: str) -> Act:
    """This as JSON, whatever it is. Underscores in the names of headers stand for hyphens."""
    return Act(json.dumps(body).encode(), status, {name.replace("_", "-"): value for name, value in headers.items()})


class JudgeServer(ThreadingHTTPServer):
    """`acts` follow one another, and the last one is repeated; a function sees the request's body and chooses."""

    daemon_threads = True

    def __init__(self, acts: list[Act] | Callable[[dict[str, Any]], Act]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.acts = acts
        self.asked: list[dict[str, Any]] = []  # bodies of the requests, in the order they came
        self.headers: list[Mapping[str, str]] = []
        self.connections: list[socket.socket] = []  # also those that clients keep for more requests
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.ends = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that went away are none of the server's business."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: JudgeServer

    def do_GET(self) -> None:
        self._send(sends({"object": "list", "data": []}))

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.asked.append(body)
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            number = len(server.asked)
            server.in_flight += 1
            server.most_in_flight = max(server.most_in_flight, server.in_flight)
        acts = server.acts
        try:
            self._send(acts(body) if callable(acts) else acts[min(number, len(acts)) - 1])
        finally:
            with server.lock:
                server.in_flight -= 1

    def _send(self, act: Act) -> None:
        if act.waits:
            self.server.ends.wait()
        if act.body is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(act.status)
        for name, value in {"Content-Type": "application/json", **act.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(act.body)))
        self.end_headers()
        self.wfile.write(act.body)

    def log_message(self, format: str, *args: Any) -> None:
        """The tests are quiet."""


@contextmanager
def judge_server(*acts: Act, choose: Callable[[dict[str, Any]], Act] | None = None) -> Iterator[JudgeServer]:
    server = JudgeServer(choose or list(acts))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ends.set()
        server.shutdown()
        server.server_close()
        for connection in server.connections:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)  # its thread ends
        thread.join()
