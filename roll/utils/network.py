"""Network interfaces of this machine, and their addresses."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import psutil

from roll.errors import ResourceError

LOOPBACK = "127.0.0.1"


def address_of(interface: str) -> str:
    """The address of an interface, of IPv4 if it has one. ResourceError if there is no such interface."""
    found = _addresses()
    if not found.get(interface):
        raise ResourceError(
            f"network_interface: {interface}: {socket.gethostname()} has no such interface with an address. It has "
            f"{_text(found)}."
        )
    return found[interface][0]


def interface_of(address: str) -> str:
    """The interface with this address. ResourceError if this machine has none."""
    wanted, found = ip_address(address), _addresses()
    for interface, addresses in found.items():
        if any(_serves(given, wanted) for given in addresses):
            return interface
    raise ResourceError(
        f"{socket.gethostname()} is known to Ray by the address {address}, which none of its interfaces has: it has "
        f"{_text(found)}. Start Ray there with --node-ip-address, or set network_interface."
    )


def _serves(given: str, wanted: object) -> bool:
    """All of 127.0.0.0/8 is the loopback interface's, which lists one."""
    listed = ip_address(given)
    return listed == wanted or (listed.is_loopback and listed.version == 4 and str(wanted).startswith("127."))


def _addresses() -> dict[str, list[str]]:
    """Addresses by interface, IPv4 first; without IPv6 addresses that need a scope."""
    found: dict[str, list[str]] = {}
    for interface, entries in psutil.net_if_addrs().items():
        texts = [(entry.family, entry.address) for entry in entries]
        found[interface] = [text for family, text in texts if family == socket.AF_INET]
        found[interface] += [text for family, text in texts if family == socket.AF_INET6 and "%" not in text]
    return found


def _text(found: dict[str, list[str]]) -> str:
    return ", ".join(f"{interface} ({addresses[0]})" for interface, addresses in found.items() if addresses)
