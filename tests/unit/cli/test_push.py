"""`roll push` against a hub of one's own, which speaks what huggingface_hub sends."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
FILES = {"config.json": b"{}\n", "model.safetensors": bytes(range(256)) * 300, "nested/tokenizer.json": b"[1]"}


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


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "my_run" / "checkpoints" / "step_000050"
    for name, content in FILES.items():
        path = directory / "hf_model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


def push(endpoint: str, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING_FACE_"))}
    given |= {"HF_ENDPOINT": endpoint, "HF_TOKEN": "hf_mine"}
    given |= {"HF_HOME": "/nonexistent", "NO_PROXY": "127.0.0.1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "roll", "push", *map(str, words)]
    return subprocess.run(command, env=given | environment, capture_output=True, text=True, check=False)


def test_the_files_of_a_checkpoint_arrive_byte_for_byte_in_one_commit(hub: Hub, checkpoint: Path) -> None:
    done = push(hub.address, checkpoint, "someone/sorter", "--private", "--revision", "step-50")
    assert done.returncode == 0, done.stderr
    assert hub.files == FILES
    assert hub.message == "Step 50 of my_run"
    assert hub.made == {"name": "sorter", "organization": "someone", "visibility": "private"}, hub.made
    assert hub.branches == ["step-50"] and any(path.endswith("/commit/step-50") for path in hub.asked)
    assert done.stdout.splitlines()[-1] == f"It is there: {hub.address}/someone/sorter/commit/1"


@pytest.mark.parametrize(
    ("words", "environment", "code", "told"),
    [
        (("CHECKPOINT", "someone/sorter"), {"HF_TOKEN": ""}, 2, "there is no token for the hub"),
        (("CHECKPOINT", "some one/sorter"), {}, 2, "some one/sorter: Repo id must use"),
        (("CHECKPOINT", "someone/sorter"), {"HF_HUB_OFFLINE": "1"}, 2, "HF_HUB_OFFLINE is set"),
        (("/nonexistent/run", "someone/sorter"), {}, 2, "there is no such directory"),
        (("Qwen/Qwen3-8B", "someone/sorter"), {}, 2, "MODEL Qwen/Qwen3-8B: there is no such directory"),
    ],
)
def test_what_cannot_be_sent_is_told_before_anything_is(
    hub: Hub, checkpoint: Path, words: tuple[str, ...], environment: dict[str, str], code: int, told: str
) -> None:
    done = push(hub.address, *(checkpoint if word == "CHECKPOINT" else word for word in words), **environment)
    assert done.returncode == code and told in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert hub.asked == []


def test_a_directory_without_weights_is_no_model(hub: Hub, checkpoint: Path) -> None:
    (checkpoint / "hf_model" / "model.safetensors").unlink()
    done = push(hub.address, checkpoint, "someone/sorter")
    assert done.returncode == 2 and "holds no weights" in done.stderr
    assert hub.asked == []


@pytest.mark.parametrize(("status", "told"), [(403, "the token may not write there"), (400, "the hub refused (400)")])
def test_a_refusal_of_the_hub_is_one_line(hub: Hub, checkpoint: Path, status: int, told: str) -> None:
    hub.status = status
    done = push(hub.address, checkpoint, "someone/sorter")
    assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_hub_that_is_not_there_is_told(checkpoint: Path) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # and does not listen
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        done = push(address, checkpoint, "someone/sorter")
    assert done.returncode == 1 and f"{address} cannot be reached" in done.stderr, done.stderr
