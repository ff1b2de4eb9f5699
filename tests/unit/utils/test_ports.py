"""Ports to listen on later."""

import socket
from pathlib import Path

import pytest

from roll.errors import ResourceError
from roll.utils import network as ports


def test_a_free_port_is_outside_what_the_system_gives_to_connections_and_ray_to_workers() -> None:
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = ports.free_port()
    assert 19999 < port < max(first_given, 21000)
    with socket.socket() as listener:
        listener.bind(("", port))


def test_a_port_in_use_is_passed_over_and_none_left_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        monkeypatch.setattr(ports, "_TRIES", 1)
        monkeypatch.setattr(ports, "_ports_nobody_gives_away", lambda: range(taken, taken + 1))
        with pytest.raises(ResourceError, match="no free port"):
            ports.free_port("127.0.0.1")
