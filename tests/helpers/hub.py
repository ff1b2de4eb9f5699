"""A hub of one's own, which speaks what huggingface_hub sends."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub(ThreadingHTTPServer):
    """Takes all files as regular ones. `status`: what it answers to each request beside 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.status, self.asked = 200, list[str]()
        self.made: dict[str, object] = {}
        self.branches, self.message = list[str](), ""
        self.files: dict[str, bytes] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        hub, text = self.server, self.rfile.read(int(self.headers["Content-Length"]))
        hub.asked.append(self.path)
        if self.path == "/api/repos/create":
            hub.made = json.loads(text)
            self._say({"url": f"{hub.address}/someone/sorter"})
        elif "/branch/" in self.path:
            hub.branches.append(self.path.rpartition("/")[2])
            self._say({})
        elif "/preupload/" in self.path:
            asked = [{"path": each["path"], "uploadMode": "regular"} for each in json.loads(text)["files"]]
            self._say({"files": [{**each, "shouldIgnore": False, "oid": None} for each in asked]})
        else:
            for line in map(json.loads, text.splitlines()):
                if line["key"] == "header":
                    hub.message = line["value"]["summary"]
                else:
                    hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._say({"commitUrl": f"{hub.address}/someone/sorter/commit/1", "commitOid": "1"})

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self._say({"id": "someone/sorter", "sha": "0", "siblings": []})

    def _say(self, answer: dict[str, object]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def running_hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def own_variables(endpoint: str, token: str = "hf_mine") -> dict[str, str]:
    """Of a process that knows no other hub, and no token of this machine."""
    return {
        "HF_ENDPOINT": endpoint,
        "HF_TOKEN": token,
        "HF_HOME": "/nonexistent",
        "HF_HUB_OFFLINE": "0",
        "NO_PROXY": "127.0.0.1",
    }
