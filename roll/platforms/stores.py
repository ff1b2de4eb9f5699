"""The stores by which processes of torch.distributed find each other, on one address of this machine: torch itself
listens on all interfaces, and takes every word it is told there."""

import errno
import socket
from datetime import timedelta
from importlib import import_module
from typing import Any

from torch._C._distributed_c10d import TCPStore

from roll.errors import StrategyError

_BACKLOG = 2048


def open_store(host: str, timeout_s: float) -> TCPStore:
    """A store on a free port (`.port`) of that address."""
    listener = _listen(host, 0)
    port = listener.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def bind_stores() -> None:
    """Makes the store that torch.distributed opens in this process, for any library, listen only on the address at
    which the others look for it."""
    rendezvous: Any = import_module("torch.distributed.rendezvous")  # `import` finds a function of that name
    rendezvous.TCPStore = _rendezvous_store


def _rendezvous_store(*, host_name: str, port: int, is_master: bool, **options: Any) -> TCPStore:
    if is_master:
        try:
            options["master_listen_fd"] = _listen(host_name, port).detach()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise StrategyError(f"torch.distributed cannot listen on {host_name}:{port}: {error}") from error
            # a second group on a store of this process shares it; if it is another's, torch says so
    return TCPStore(host_name=host_name, port=port, is_master=is_master, **options)


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
