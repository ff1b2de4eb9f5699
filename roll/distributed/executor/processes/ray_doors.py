"""Who gets into a Ray cluster of our own: by default only this machine, and on it only who has the token. Whoever is
in can run code as the cluster's user."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from ray._private import ray_constants
from ray._raylet import (  # compiled, without stubs
    AuthenticationMode,  # type: ignore[attr-defined]
    AuthenticationTokenLoader,  # type: ignore[attr-defined]
    Config,  # type: ignore[attr-defined]
    get_authentication_mode,  # type: ignore[attr-defined]
)

_TOKEN_BYTES = 32


@contextmanager
def own_doors(directory: Path, address: str) -> Iterator[None]:
    """Inside, `ray.init(_node_ip_address=address)` starts a cluster whose processes ask for a token, which they find in
    `directory`. At a loopback address they listen there alone; at any other on all interfaces, as Ray cannot do
    otherwise."""
    token = directory / "token"
    with os.fdopen(os.open(token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(secrets.token_hex(_TOKEN_BYTES))
    # Without this Ray takes the address of another interface for a loopback address, except on macOS and Windows.
    takes_another, ray_constants.ENABLE_RAY_CLUSTER = (
        ray_constants.ENABLE_RAY_CLUSTER,
        not ip_address(address).is_loopback,
    )
    ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_AUTH_TOKEN": None}
    users = {name: os.environ.get(name) for name in ours}
    _set(ours)
    read_credentials()
    try:
        yield
    finally:
        _set(users)  # Ray's processes have inherited ours, and this one has read them
        ray_constants.ENABLE_RAY_CLUSTER = takes_another


def read_credentials() -> None:
    """Ray keeps what it read of these variables when it first looked."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def takes_everybody_in() -> bool:
    """Whether the cluster that this process is connected to asks for no token."""
    return get_authentication_mode() == AuthenticationMode.DISABLED


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
