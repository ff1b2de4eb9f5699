"""What the gate lets through, by HTTP and by websocket."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket

from roll.errors import ConfigError
from roll.studio.access import Gate
from roll.studio.command import place_of

TOKEN = "a-token-of-some-length"
PATHS = ("/", "/run/0123", "/_nicegui/3.18.0/static/nicegui.js", "/data/rollouts", "/report/0123")


async def _page(request: object) -> PlainTextResponse:
    return PlainTextResponse("inside")


async def _talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("inside")
    await socket.close()


def client(token: str | None = TOKEN, host: str = "127.0.0.1") -> TestClient:
    app = Starlette(routes=[WebSocketRoute("/_nicegui_ws/socket.io", _talk), Route("/{path:path}", _page)])
    gate = Gate(app, token, place_of("127.0.0.1", None).names, 8570)
    return TestClient(gate, base_url=f"http://{host}:8570", follow_redirects=False)


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


def test_a_token_does_not_lead_to_another_host() -> None:
    assert client().get(f"http://127.0.0.1:8570//evil.example/?token={TOKEN}").headers["location"] == "/evil.example/"


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


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_page_of_another_place_gets_nothing(token: str | None) -> None:
    browser = client(token)
    if token:
        browser.get(f"/?token={token}")
    headers = {"origin": "http://evil.example"}
    assert browser.get("/", headers=headers).status_code == 403
    with (
        pytest.raises(WebSocketDenialResponse) as refused,
        browser.websocket_connect("ws://127.0.0.1:8570/_nicegui_ws/socket.io", headers=headers),
    ):
        pass
    assert refused.value.status_code == 403
    assert browser.get("/", headers={"origin": "http://127.0.0.1:8570"}).status_code == 200


def test_without_a_token_only_names_of_this_machine_are_answered() -> None:
    assert client(None, "127.0.0.1").get("/").text == "inside"
    assert client(None, "localhost").get("/").text == "inside"
    assert client(None, "points-here.example").get("/").status_code == 403


def test_pages_may_fetch_from_the_studio_alone() -> None:
    policy = client(None).get("/").headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ") and "http" not in policy


def test_a_token_is_made_where_others_can_reach_the_port_and_no_token_was_given() -> None:
    assert place_of("127.0.0.1", None).token is None
    assert place_of("::1", None).url(8570) == "http://[::1]:8570/"
    made = [place_of("0.0.0.0", None).token for _ in range(2)]
    assert all(token and len(token) == 32 for token in made) and made[0] != made[1]
    assert place_of("host.example", "mine").url(80) == "http://host.example:80/?token=mine"
    with pytest.raises(ConfigError, match="--token is empty"):
        place_of("0.0.0.0", "")
