"""What processes listen on."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address

import psutil


def listening(processes: Iterable[psutil.Process]) -> dict[tuple[int, int], str]:
    """Addresses by (process, port)."""
    found = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found[process.pid, connection.laddr.port] = connection.laddr.ip
    return found


def open_to_others(processes: Iterable[psutil.Process]) -> dict[tuple[int, int], str]:
    """Those of them that can be reached from other machines."""
    return {who: address for who, address in listening(processes).items() if not _is_loopback(address)}


def unix_sockets(processes: Iterable[psutil.Process]) -> set[str]:
    """Files on which they listen."""
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found |= {str(connection.laddr) for connection in process.net_connections(kind="unix") if connection.laddr}
    return {path for path in found if path.startswith("/")}


def _is_loopback(text: str) -> bool:
    address = ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
