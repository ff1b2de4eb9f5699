"""RAY_ADDRESS: whether anybody answers there."""

from __future__ import annotations

import socket

from roll.errors import ResourceError


def check_reachable(address: str, timeout_s: float = 10) -> None:
    """Ray itself waits for minutes. Raises ResourceError if nobody listens at a host:port."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        raise unreachable(address, "it is not of the form host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    except (OSError, OverflowError) as error:
        raise unreachable(address, str(error)) from error


def unreachable(address: str, reason: str) -> ResourceError:
    return ResourceError(
        f"RAY_ADDRESS={address}: no Ray cluster answers there ({reason}). Give the host:port that `ray start --head` "
        "prints, or unset RAY_ADDRESS to run on this machine alone."
    )
