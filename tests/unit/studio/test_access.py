"""What the gate lets through, by HTTP and by websocket."""

import os
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket

from roll.errors import ConfigError
from roll.studio.command import TOKEN_VARIABLE, run, token_of
from roll.studio.launch import Address
from roll.studio.server import Gate

TOKEN = "a-token-of-some-length"
PATHS = ("/", "/run/0123", "/_nicegui/3.18.0/static/nicegui.js", "/data/rollouts", "/report/0123")


async def _page(request: object) -> PlainTextResponse:
    return PlainTextResponse("inside")


async def _talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("inside")
    await socket.close()


def client() -> TestClient:
    app = Starlette(routes=[WebSocketRoute("/_nicegui_ws/socket.io", _talk), Route("/{path:path}", _page)])
    return TestClient(Gate(app, TOKEN, 8570), base_url="http://127.0.0.1:8570", follow_redirects=False)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("query", ["", "?token=", "?token=a-token-of-some-lengt", "?token=%C3%A4"])
def test_without_the_token_every_path_answers_401(path: str, query: str) -> None:
    answer = client().get(path + query)
    assert answer.status_code == 401
    assert "inside" not in answer.text and "set-cookie" not in answer.headers


def test_a_cookie_of_somebody_else_answers_401() -> None:
    for cookie in ("x", TOKEN, ""):
        assert client().get("/", headers={"cookie": f"roll_studio_8570={cookie}"}).status_code == 401


def test_the_token_gives_a_cookie_that_scripts_cannot_read_and_the_address_without_it() -> None:
    browser = client()
    answer = browser.get(f"/run/7?a=1&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/run/7?a=1")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and TOKEN not in cookie
    assert [browser.get(path).text for path in PATHS] == ["inside"] * len(PATHS)


def test_a_websocket_without_the_cookie_is_refused_with_401() -> None:
    with (
        pytest.raises(WebSocketDenialResponse) as refused,
        client().websocket_connect("/_nicegui_ws/socket.io"),
    ):
        pass
    assert refused.value.status_code == 401


def test_a_websocket_with_the_cookie_is_served() -> None:
    browser = client()
    browser.get(f"/?token={TOKEN}")
    with browser.websocket_connect("ws://127.0.0.1:8570/_nicegui_ws/socket.io") as socket:
        assert socket.receive_text() == "inside"


@pytest.mark.parametrize("origin", ["http://evil.example", "http://[", "null"])
def test_a_page_of_another_place_gets_nothing(origin: str) -> None:
    browser = client()
    browser.get(f"/?token={TOKEN}")
    headers = {"origin": origin}
    assert browser.get("/", headers=headers).status_code == 403
    with (
        pytest.raises(WebSocketDenialResponse) as refused,
        browser.websocket_connect("ws://127.0.0.1:8570/_nicegui_ws/socket.io", headers=headers),
    ):
        pass
    assert refused.value.status_code == 403
    assert browser.get("/", headers={"origin": "http://127.0.0.1:8570"}).status_code == 200


def test_pages_may_fetch_from_the_studio_alone() -> None:
    browser = client()
    browser.get(f"/?token={TOKEN}")
    policy = browser.get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ") and "http" not in policy


class Served(NamedTuple):
    place: Address
    environment: str | None


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Served]:
    """What would be served, in a folder of its own."""
    found: list[Served] = []

    def serve(folders: object, place: Address, listener: socket.socket) -> None:
        found.append(Served(place, os.environ.get(TOKEN_VARIABLE)))
        listener.close()

    module = ModuleType("roll.studio.server")
    module.__dict__["serve"] = serve
    monkeypatch.setitem(sys.modules, "roll.studio.server", module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_every_start_has_a_token_of_its_own_and_prints_it(
    host: str, served: list[Served], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run(["--host", host, "--port", "0"]) == 0
    tokens = [each.place.token for each in served]
    assert len(set(tokens)) == 2 and all(len(token) == 32 for token in tokens)
    printed = [line for line in capsys.readouterr().out.splitlines() if "token=" in line]
    assert [line.rpartition("?token=")[2] for line in printed] == tokens


def test_a_token_of_ones_own_comes_from_a_file_or_the_environment(
    served: list[Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}-file\n")
    file.chmod(0o600)
    monkeypatch.setenv(TOKEN_VARIABLE, f"{TOKEN}-env")
    run(["--port", "0"])
    monkeypatch.setenv(TOKEN_VARIABLE, f"{TOKEN}-env")
    run(["--port", "0", "--token_file", str(file)])
    assert [each.place.token for each in served] == [f"{TOKEN}-env", f"{TOKEN}-file"]
    assert [each.environment for each in served] == [None, None], "runs that are started do not inherit it"


@pytest.mark.parametrize("text, mode", [(TOKEN, 0o640), (TOKEN, 0o604), (TOKEN, 0o602), ("short", 0o600), ("", 0o600)])
def test_a_token_that_others_can_learn_is_refused(tmp_path: Path, text: str, mode: int) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    wanted = "chmod 600" if text == TOKEN else "16 characters"
    with pytest.raises(ConfigError, match=wanted):
        token_of(str(file), None)


def test_a_token_is_not_taken_where_everybody_sees_it_nor_from_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every user of this machine can read command lines"):
        run(["--token", TOKEN])
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="cannot be read"):
            token_of(str(path), None)
    for text in ("", "short", "a" * 15, "a\n" * 20):
        with pytest.raises(ConfigError, match=TOKEN_VARIABLE):
            token_of(None, text)


def test_a_folder_that_is_not_there_is_refused_unless_it_is_the_default(served: list[Served], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, why in (("nope", "nope does not exist"), ("file", "file is a file"), ("~nobody-here", "no user")):
        with pytest.raises(ConfigError, match=f"{why}.*: name folders that have runs below them"):
            run([name, "--port", "0"])
    assert run(["--port", "0"]) == 0
    assert len(served) == 1
