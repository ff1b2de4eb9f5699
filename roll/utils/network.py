"""Network interfaces of this machine, and their addresses."""

import contextlib
import os
import random
import socket
from ipaddress import ip_address
from pathlib import Path

import psutil

from roll.errors import ConfigError, ResourceError

LOOPBACK = "127.0.0.1"


def address_of(interface: str) -> str:
    """The address of an interface, of IPv4 if it has one. ResourceError if there is no such interface."""
    by_interface = _addresses()
    if not by_interface.get(interface):
        raise ResourceError(
            f"network_interface: {interface}: {socket.gethostname()} has no such interface with an address. It has "
            f"{_text(by_interface)}."
        )
    return by_interface[interface][0]


def interface_of(address: str) -> str:
    """The interface with this address. ResourceError if this machine has none."""
    wanted, by_interface = ip_address(address), _addresses()
    for interface, addresses in by_interface.items():
        if any(_serves(listed, wanted) for listed in addresses):
            return interface
    raise ResourceError(
        f"{socket.gethostname()} is known to Ray by the address {address}, but its interfaces have other ones: "
        f"{_text(by_interface)}. Start Ray there with --node-ip-address, or set network_interface."
    )


def _serves(text: str, wanted: object) -> bool:
    """All of 127.0.0.0/8 is the loopback interface's, which lists one."""
    listed = ip_address(text)
    return listed == wanted or (listed.is_loopback and listed.version == 4 and str(wanted).startswith("127."))


def _addresses() -> dict[str, list[str]]:
    """Addresses by interface, IPv4 first; without IPv6 addresses that need a scope."""
    by_interface: dict[str, list[str]] = {}
    for interface, entries in psutil.net_if_addrs().items():
        texts = [(entry.family, entry.address) for entry in entries]
        by_interface[interface] = [text for family, text in texts if family == socket.AF_INET]
        by_interface[interface] += [text for family, text in texts if family == socket.AF_INET6 and "%" not in text]
    return by_interface


def _text(by_interface: dict[str, list[str]]) -> str:
    return ", ".join(f"{interface} ({addresses[0]})" for interface, addresses in by_interface.items() if addresses)


# Ports for those who listen only later.

_LAST_PORT_OF_RAY = 19999  # its default max_worker_port
_TRIES = 100


def free_port(host: str = "") -> int:
    """A port of this machine for something that will listen on `host` (default: everywhere), on a busy machine only
    minutes later. So it is none that the system may give to a connection meanwhile, and none of those that Ray gives
    to its workers. ResourceError if none is found."""
    for port in random.SystemRandom().sample(_ports_nobody_gives_away(), _TRIES):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise ResourceError(f"no free port: {_TRIES} were tried")


def _ports_nobody_gives_away() -> range:
    """Ports above Ray's, and below the first that Linux gives to outgoing connections."""
    try:
        first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first_given = 32768
    return range(_LAST_PORT_OF_RAY + 1, max(first_given, _LAST_PORT_OF_RAY + 1000))


# RAY_ADDRESS: whether it names a cluster, and whether anybody answers there.


_ADDRESS_HINT = "Give the host:port that `ray start --head` prints, or unset RAY_ADDRESS to run on this machine alone."


def cluster_address() -> str | None:
    """Return the address of the Ray cluster that RAY_ADDRESS names; None if a run starts Ray itself."""
    address = os.environ.get("RAY_ADDRESS")
    return None if address in (None, "", "local") else address


def check_reachable(address: str, timeout_s: float = 10) -> None:
    """Ray itself waits for minutes. Raises ConfigError if it is no host:port, ResourceError if nobody listens there."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        raise ConfigError(f"RAY_ADDRESS={address} is not of the form host:port. {_ADDRESS_HINT}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    except (OSError, OverflowError) as error:
        raise unreachable(address, str(error)) from error


def unreachable(address: str, reason: str) -> ResourceError:
    return ResourceError(f"RAY_ADDRESS={address}: no Ray cluster answers there ({reason}). {_ADDRESS_HINT}")
