"""`roll push` against a hub of one's own, which speaks what huggingface_hub sends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.cases import cases
from tests.helpers.hub import Hub, own_variables, running_hub

REPOSITORY = Path(__file__).resolve().parents[3]
FILES = {"config.json": b"{}\n", "model.safetensors": bytes(range(256)) * 300, "nested/tokenizer.json": b"[1]"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "my_run" / "checkpoints" / "step_000050"
    for name, content in FILES.items():
        path = directory / "hf_model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


def push(endpoint: str, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    given = os.environ | own_variables(endpoint) | {"PYTHONPATH": str(REPOSITORY)}
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


@cases("words, environment, code, told")
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


@pytest.mark.parametrize(("quota", "status", "told"), [("it is full", 200, "it is full"), ("", 403, "403 Forbidden")])
def test_a_large_file_that_is_not_taken_is_told(hub: Hub, checkpoint: Path, quota: str, status: int, told: str) -> None:
    hub.quota_message, hub.store_status = quota, status
    done = push(hub.address, checkpoint, "someone/sorter")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "a large file was not taken" in done.stderr and told in done.stderr
    assert hub.files == {}


def test_a_hub_that_is_not_there_is_told(checkpoint: Path) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # and does not listen
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        done = push(address, checkpoint, "someone/sorter")
    assert done.returncode == 1 and f"{address} cannot be reached" in done.stderr, done.stderr
