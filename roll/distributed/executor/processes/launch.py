"""The Ray runtime of one run: joins a cluster or starts one, and takes it down again."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.exceptions import AuthenticationError

from roll.distributed.executor.processes import cleaner
from roll.distributed.executor.processes.cleaner_process import CleanerProcess
from roll.distributed.executor.processes.ray_doors import own_doors, read_credentials, takes_everybody_in
from roll.distributed.executor.processes.ray_watch import died, vital_processes, when_one_dies
from roll.errors import ResourceError, WorkerError
from roll.utils.network import LOOPBACK, address_of
from roll.utils.ray_address import check_reachable, unreachable

logger = logging.getLogger(__name__)

# Read by Ray when it starts; what the user set wins.
_RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # we set the visible devices of each worker
    "RAY_DEDUP_LOGS": "0",
    "RAY_enable_worker_prestart": "0",  # our workers bring their own environment, so idle ones are never used
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",
}
_LEAST_OBJECT_STORE_BYTES = 1 << 30
_OBJECT_STORE_SHARE = 0.3  # of what is free where the object store lives


class RayRuntime:
    """Connects this process to Ray: the running connection if there is one, else the cluster at RAY_ADDRESS, else a
    cluster of its own on this host, which ends with `shutdown`, or with this process, however it ends.

    `directory` is of a cluster of its own: whatever belongs to the run alone, in nobody else's reach. When such a
    cluster dies, `on_lost` is called from a thread; then `is_lost`, and nothing may be asked of Ray any more: calls
    hang, or end this process without a word. What workers printed goes to the directory `logs`. `stored_bytes` may be
    in its object store at once; what does not fit goes to files in `directory`, which is slow."""

    def __init__(
        self,
        network_interface: str | None = None,
        logs: Path | None = None,
        on_lost: Callable[[WorkerError], None] | None = None,
        stored_bytes: int = 0,
    ) -> None:
        self.directory: Path | None = None
        self.is_lost = self._is_ending = False
        self.vital: dict[int, str] = {}  # Ray's own processes, by pid, of a cluster of its own
        self._on_lost = on_lost
        self._cleaner: CleanerProcess | None = None
        self._connected_here = not ray.is_initialized()
        if not self._connected_here:
            return
        for name, value in _RAY_SETTINGS.items():
            os.environ.setdefault(name, value)
        address = os.environ.get("RAY_ADDRESS")
        if address and address != "local":
            self._join(address)
        else:
            interface = LOOPBACK if network_interface is None else address_of(network_interface)
            self._start_local(interface, logs, stored_bytes)

    def shutdown(self) -> None:
        """Disconnects. A cluster of our own ends with all its processes. Idempotent."""
        self._ends()
        if self._connected_here and not self.is_lost and ray.is_initialized():
            ray.shutdown()
        self._connected_here = False
        if self._cleaner is None:
            return
        self._cleaner.end()
        self.directory = self._cleaner = None

    def _ends(self) -> None:
        """What dies from now on was meant to: also at the end of a process that was interrupted before `shutdown`."""
        self._is_ending = True
        if self._cleaner is not None:
            self._cleaner.nothing_to_say()

    def _join(self, address: str) -> None:
        check_reachable(address)
        read_credentials()
        try:
            with _own_sigterm_handler():
                ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        except (AuthenticationError, ConnectionError, RuntimeError, ValueError) as error:
            raise _not_joined(address, error) from error
        logger.info("joined the Ray cluster at %s", address)
        if takes_everybody_in():
            logger.warning(
                "The Ray cluster at %s does not require a token: anybody who reaches its ports can run code as its "
                "user. docs/network.md says how to start it with one.",
                address,
            )

    def _start_local(self, address: str, logs: Path | None, stored_bytes: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="roll-", dir=_short_directory()))
        self._cleaner = CleanerProcess(str(self.directory), logs)
        os.environ[cleaner.MARK] = str(self.directory)
        try:
            with own_doors(self.directory, address), _own_sigterm_handler():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                    object_store_memory=_object_store_bytes(stored_bytes),
                    _node_ip_address=address,
                    _temp_dir=str(self.directory / cleaner.RAY),  # Ray opens it to everybody; ours is closed around it
                )
        except BaseException as error:
            self.shutdown()
            if isinstance(error, Exception):
                raise ResourceError(f"Ray did not start on this machine: {error}") from error
            raise
        finally:
            del os.environ[cleaner.MARK]  # Ray's processes have inherited it; what else we start is not theirs
        self.vital = vital_processes(str(self.directory))
        when_one_dies(self.vital, self.directory / cleaner.RAY / "session_latest" / "logs", self._lost)
        self._cleaner.say_if_dead({pid: died(name, pid) for pid, name in self.vital.items()})
        atexit.register(self._ends)  # Ray's own end of the cluster comes after it

    def _lost(self, what: str) -> None:
        """Says it first of all: Ray may end this process at its next call; where it has, the cleaner says it."""
        if self._is_ending or self.is_lost:
            return
        self.is_lost = True
        error = WorkerError(what)
        logger.error("%s", error)
        if self._cleaner is not None:
            self._cleaner.nothing_to_say()
        atexit.unregister(ray.shutdown)
        if self._on_lost is not None:
            self._on_lost(error)


@contextmanager
def _own_sigterm_handler() -> Iterator[None]:
    """Ray puts a handler of its own in the place of ours, which ends the process without a word. Afterwards ours is
    back; a SIGTERM that came meanwhile is its to handle."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler, was_sent = signal.getsignal(signal.SIGTERM), False
    try:
        yield
    except SystemExit:  # what Ray's handler does
        was_sent = True
    finally:
        signal.signal(signal.SIGTERM, handler)
    if was_sent:
        signal.raise_signal(signal.SIGTERM)


def _not_joined(address: str, error: BaseException) -> ResourceError:
    """Ray names the cause only further down."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    if any("InvalidAuthToken" in str(cause) for cause in causes) or isinstance(error, AuthenticationError):
        return ResourceError(
            f"RAY_ADDRESS={address}: the Ray cluster there requires a token, and this process has none or a wrong one. "
            "Set RAY_AUTH_MODE=token, and the cluster's token in RAY_AUTH_TOKEN or a file of it in "
            "RAY_AUTH_TOKEN_PATH."
        )
    return unreachable(address, str(error))


def _short_directory() -> str:
    """The directory for temporary files, or /tmp where its name is so long that sockets below it would exceed what Unix
    allows (107 characters, of which Ray's own part and ours are about 80), or has a space, at which Ray splits command
    lines."""
    directory = tempfile.gettempdir()
    return directory if len(directory) <= 25 and " " not in directory else "/tmp"


def _object_store_bytes(stored_bytes: int) -> int:
    """Shared memory is only reserved, not used, up front; take a modest part of what is free."""
    free = shutil.disk_usage("/dev/shm" if Path("/dev/shm").exists() else tempfile.gettempdir()).free
    wanted = max(_LEAST_OBJECT_STORE_BYTES, stored_bytes)
    return max(100 << 20, min(wanted, int(free * _OBJECT_STORE_SHARE)))
