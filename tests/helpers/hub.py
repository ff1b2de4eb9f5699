"""A hub of one's own, which speaks what huggingface_hub sends."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub(ThreadingHTTPServer):
    """Takes weights as large files, through its store, and all others as regular ones. `status`: what it answers to
    each request beside 200; `store_status`: to a large file; `quota_message`: why it takes none."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.status, self.asked = 200, list[str]()
        self.made: dict[str, object] = {}
        self.branches, self.message = list[str](), ""
        self.files: dict[str, bytes] = {}
        self.store_status, self.quota_message = 200, ""
        self.store: dict[str, bytes] = {}  # SHA-256 -> a large file

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
            paths = [each["path"] for each in json.loads(text)["files"]]
            modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in paths}
            known = {"shouldIgnore": False, "oid": None}
            self._say({"files": [{"path": path, "uploadMode": mode, **known} for path, mode in modes.items()]})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = [each | self._place(each["oid"]) for each in json.loads(text)["objects"]]
            self._say({"transfer": "basic", "objects": objects})
        else:
            for line in map(json.loads, text.splitlines()):
                if line["key"] == "header":
                    hub.message = line["value"]["summary"]
                elif line["key"] == "lfsFile":
                    hub.files[line["value"]["path"]] = hub.store[line["value"]["oid"]]
                else:
                    hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._say({"commitUrl": f"{hub.address}/someone/sorter/commit/1", "commitOid": "1"})

    def _place(self, digest: str) -> dict[str, object]:
        if self.server.quota_message:
            return {"error": {"code": 403, "message": self.server.quota_message}}
        return {"actions": {"upload": {"href": f"{self.server.address}/store/{digest}"}}}

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.store_status == 200:
            self.server.store[hashlib.sha256(content).hexdigest()] = content
        self._say({}, self.server.store_status)

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self._say({"id": "someone/sorter", "sha": "0", "siblings": []})

    def _say(self, answer: dict[str, object], status: int | None = None) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status or self.server.status)
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
        "HF_HUB_DISABLE_XET": "1",  # whose store speaks a protocol of its own
        "NO_PROXY": "127.0.0.1",
    }
