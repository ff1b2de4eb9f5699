"""Trackers whose server does not answer are refused before anything is started."""

import socket

import pytest

from roll.run.tracking.services import check_reachable


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
