"""`roll studio`: runs, their rollouts and new configurations, in a browser."""

from __future__ import annotations

import argparse
import ipaddress
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from roll.errors import ConfigError
from roll.utils.output import say

USAGE = """roll studio [FOLDER ...] [--host 127.0.0.1] [--port 8570] [--token T]

Serves the runs below the folders (default: output), finished and running, their rollouts, and a builder of
configurations that starts runs below the first folder. Bound to anything but this machine itself it demands a token;
the address that is printed has it. docs/studio.md."""


@dataclass(frozen=True)
class Place:
    """Where the studio listens. `token` None: whoever is on this machine may look."""

    host: str
    token: str | None
    is_local: bool

    def url(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}/" + (f"?token={self.token}" if self.token else "")

    @property
    def names(self) -> frozenset[str]:
        """What this machine is called in addresses without a token."""
        return frozenset({"127.0.0.1", "localhost", "::1", self.host.lower()})


def run(argv: Sequence[str]) -> int:
    """Serves until Ctrl-C. Raises ConfigError for what cannot be served."""
    options = _parser().parse_args(argv)
    place = place_of(options.host, options.token)
    folders = [Path(folder) for folder in options.folders]
    if wrong := [str(folder) for folder in folders if folder.exists() and not folder.is_dir()]:
        raise ConfigError(*(f"{folder} is a file: name folders that have runs below them." for folder in wrong))
    if find_spec("nicegui") is None:
        raise ConfigError("roll studio needs NiceGUI: pip install 'roll-rl[studio]' (in a checkout: -e '.[studio]').")
    listener = _listener(place.host, options.port)
    from roll.studio.server import serve

    say(f"roll studio: {place.url(listener.getsockname()[1])}")
    say("Ctrl-C ends it; runs that it started go on.")
    serve(folders, place, listener)
    return 0


def place_of(host: str, token: str | None) -> Place:
    """Raises ConfigError for an empty token. Elsewhere than on this machine one is made where none was given."""
    if token is not None and not token:
        raise ConfigError("--token is empty: give one, or leave the option out.")
    is_local = _is_loopback(host)
    return Place(host, token or (None if is_local else secrets.token_urlsafe(24)), is_local)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        told = f"{host}, port {port}: nothing can listen there ({error}). --port 0 takes a free one."
        raise ConfigError(told) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll studio", usage=USAGE, allow_abbrev=False)
    parser.add_argument("folders", nargs="*", default=["output"], metavar="FOLDER", help="with runs below it")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default: this machine alone")
    parser.add_argument("--port", type=int, default=8570, help="0: a free one")
    parser.add_argument("--token", help="what a browser has to show once; default: one is made where it is needed")
    return parser
