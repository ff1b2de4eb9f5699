"""Interfaces, addresses and ports of this machine."""

import socket
from pathlib import Path

import psutil
import pytest

from roll.errors import ResourceError
from roll.utils import network as ports
from roll.utils.network import LOOPBACK, address_of, interface_of


def test_interfaces_are_found_by_their_addresses():
    loopback = interface_of(LOOPBACK)
    assert address_of(loopback) == LOOPBACK
    for interface, entries in psutil.net_if_addrs().items():
        addresses = [entry.address for entry in entries if entry.family.name == "AF_INET"]
        if addresses:
            assert address_of(interface) == addresses[0]
            assert interface_of(addresses[0]) == interface
    assert interface_of("127.0.0.2") == interface_of(LOOPBACK)
    with pytest.raises(ResourceError, match=r"network_interface: ib7: .* no such interface .*\(127\.0\.0\.1\)"):
        address_of("ib7")
    with pytest.raises(ResourceError, match=r"known to Ray by the address 203\.0\.113\.9.*set network_interface"):
        interface_of("203.0.113.9")


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
