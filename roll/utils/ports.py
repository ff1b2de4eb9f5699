"""Ports for those who listen only later."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from roll.errors import ResourceError

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
