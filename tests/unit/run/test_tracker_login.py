"""Trackers that cannot log in are refused before anything is started."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from roll.run.tracking.build import missing_logins
from roll.run.tracking.services import check_reachable
from tests.helpers.cases import cases


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without credentials, in a folder without any."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "SWANLAB_"))] + ["NETRC"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_services_without_a_key_are_named_with_what_to_do() -> None:
    wandb, swanlab = missing_logins(["wandb", "jsonl", "swanlab"], {})
    assert wandb == (
        "track_with: wandb has no API key for https://api.wandb.ai. Run `wandb login`, or set WANDB_API_KEY or "
        "tracker_kwargs.api_key, or mode: offline in tracker_kwargs, or take it out."
    )
    assert swanlab.startswith("track_with: swanlab has no API key. Run `swanlab login`")


@cases("kwargs, environment")
def test_a_key_or_an_offline_mode_is_enough(
    kwargs: dict[str, Any], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert missing_logins(["wandb", "swanlab"], kwargs) == []


def test_what_a_login_wrote_counts_for_its_own_host_only(nobody: Path) -> None:
    (nobody / ".netrc").write_text("machine api.wandb.ai login user password k\n")
    assert missing_logins(["wandb"], {}) == []
    assert len(missing_logins(["wandb"], {"host": "https://wandb.example.com"})) == 1
    (nobody / ".swanlab").mkdir()
    (nobody / ".swanlab" / ".netrc").write_text("machine x login y password k\n")
    assert missing_logins(["swanlab"], {}) == []


def test_a_server_where_nobody_listens_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionError, match="nobody answers at 127.0.0.1"):
            check_reachable(address)
        server.listen()
        check_reachable(address)
    check_reachable("file:///nowhere")
