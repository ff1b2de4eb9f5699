"""The Ray runtime of one run: joins a cluster or starts one, and takes it down again."""

import atexit
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TypeVar

import ray
from ray._private import ray_constants, services
from ray._raylet import (
    AuthenticationMode,  # type: ignore[attr-defined]
    AuthenticationTokenLoader,  # type: ignore[attr-defined]
    Config,  # type: ignore[attr-defined]
    get_authentication_mode,  # type: ignore[attr-defined]
)
from ray.exceptions import AuthenticationError

from roll.distributed.executor.processes import cleaner
from roll.errors import ResourceError, WorkerError
from roll.utils.background import on_exit
from roll.utils.imports import replaced
from roll.utils.network import LOOPBACK, address_of, check_reachable, cluster_address, unreachable

# The cleaner of one run, seen from its driver.

T = TypeVar("T")
logger = logging.getLogger(__name__)

_END_LIMIT_S = 30.0


class CleanerProcess:
    """Ends what belongs to the run with this directory when the driver ends. What workers printed goes to `logs`."""

    def __init__(self, directory: str, logs: Path | None = None):
        self._arguments = (directory, *([] if logs is None else [str(logs.absolute())]))
        command = [sys.executable, "-S", "-E", cleaner.__file__, *self._arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def report_dead(self, texts: Mapping[int, str]) -> None:
        """The texts that it says of processes that die before the driver, unless `nothing_to_say` comes first."""
        self._send("".join(f"{pid} {text}\n" for pid, text in texts.items()))

    def nothing_to_say(self) -> None:
        self._send("\n")

    def end(self) -> None:
        """Returns when everything of the run is gone, also if somebody killed the cleaner."""
        try:
            self._process.communicate(timeout=_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if self._process.wait() != 0:
            cleaner.clean(*self._arguments)

    def _send(self, lines: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # it is dead, or was told to end
            os.write(self._process.stdin.fileno(), lines.encode())


# Who gets into a Ray cluster of our own: by default only this machine, and on it only who has the token. Whoever is in
# can run code as the cluster's user.

_TOKEN_BYTES = 32


@contextmanager
def cluster_access(directory: Path, address: str) -> Iterator[None]:
    """Inside, `ray.init(_node_ip_address=address)` starts a cluster whose processes ask for a token, which they find in
    `directory`. At a loopback address they listen there alone; at any other on all interfaces, as Ray cannot do
    otherwise."""
    token = directory / "token"
    with os.fdopen(os.open(token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(secrets.token_hex(_TOKEN_BYTES))
    ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_AUTH_TOKEN": None}
    users = {name: os.environ.get(name) for name in ours}
    _set(ours)
    read_credentials()
    try:
        # Else Ray takes the address of another interface for a loopback address, except on macOS and Windows.
        with replaced(ray_constants, "ENABLE_RAY_CLUSTER", not ip_address(address).is_loopback):
            yield
    finally:
        _set(users)  # Ray's processes have inherited ours, and this one has read them


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


# Notices that a process of Ray's own died on this host: without it no call to a worker ever ends.

_VITAL = ("raylet", "gcs_server")


def vital_processes(directory: str) -> dict[int, str]:
    """Pids and names of those of the cluster with this directory."""
    names = {pid: _name(pid) for pid in cleaner.marked_processes(cleaner.MARK, directory)}
    return {pid: f"Ray's {name}" for pid, name in names.items() if name in _VITAL}


def when_one_dies(processes: Mapping[int, str], then: Callable[[str], None]) -> None:
    """Calls `then` from a thread, with a text that says what died and how, once for each."""
    for pid, name in processes.items():
        on_exit(pid, partial(_say, name, pid, then))


def died(name: str, pid: int, how: str = "cause unknown") -> str:
    return (
        f"{name} on this host died (pid {pid}, {how}): no worker can be reached without it. If nobody stopped it, the "
        "host may be out of memory (see `dmesg`)."
    )


def _say(name: str, pid: int, then: Callable[[str], None]) -> None:
    """Tells how a child ended, without taking its status from who waits for it."""
    with suppress(ChildProcessError):
        if ending := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            kind = "exit code" if ending.si_code == os.CLD_EXITED else "signal"
            then(died(name, pid, f"{kind} {ending.si_status}"))
            return
    then(died(name, pid))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


_START_LIMIT_S = 120.0  # of each of Ray's own processes; 30 s, Ray's limit, are too few on a busy machine
_START_POLL_S = 0.5
# Read by Ray when it starts; what the user set wins.
_RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # we set the visible devices of each worker
    "RAY_DEDUP_LOGS": "0",
    "RAY_enable_worker_prestart": "0",  # our workers bring their own environment, so idle ones are never used
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_gcs_server_port_wait_time_s": f"{_START_LIMIT_S:.0f}",
    "SPT_NOENV": "1",  # else Ray's agents overwrite their environment with their title, and with it the cleaner's mark
}
_LEAST_OBJECT_STORE_BYTES = 1 << 30
_OBJECT_STORE_SHARE = 0.3  # of what is free where the object store lives


class RayRuntime:
    """Connects this process to Ray: the running connection if there is one, else the cluster at RAY_ADDRESS, else a
    cluster of its own on this host, which ends with `shutdown`, or with this process, however it ends.

    `directory`, `logs` (what workers print) and `stored_bytes` (of its object store) are of a cluster of its own. When
    such a cluster dies, `on_lost` is called from a thread; then `is_lost`, and nothing may be asked of Ray any more:
    calls hang, or end this process without a word."""

    def __init__(
        self,
        network_interface: str | None = None,
        logs: Path | None = None,
        on_lost: Callable[[WorkerError], None] | None = None,
        stored_bytes: int = 0,
    ) -> None:
        self.directory: Path | None = None
        self.is_lost = self._is_ending = False
        self._on_lost = on_lost
        self._cleaner: CleanerProcess | None = None
        self._connected_here = not ray.is_initialized()
        if not self._connected_here:
            return
        for name, value in _RAY_SETTINGS.items():
            os.environ.setdefault(name, value)
        if (address := cluster_address()) is not None:
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
        """Treat any process that dies from now on as ended on purpose."""
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
            with (
                cluster_access(self.directory, address),
                _own_sigterm_handler(),
                _in_groups_of_their_own(),
                _waiting_for_raylet(str(self.directory)),
            ):
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
        vital = vital_processes(str(self.directory))
        when_one_dies(vital, self._lost)
        self._cleaner.report_dead({pid: died(name, pid) for pid, name in vital.items()})
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
    """Ray puts its own handler of SIGTERM in the place of ours. Afterwards ours is back, and handles what came."""
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


def _in_groups_of_their_own() -> AbstractContextManager[None]:
    """Inside, Ray's processes start in groups of their own, so that a signal to the driver's leaves them alive."""
    return replaced(services, "ConsolePopen", partial(subprocess.Popen, process_group=0))


def _waiting_for_raylet(directory: str) -> AbstractContextManager[None]:
    """Inside, a raylet of the cluster in this directory that lives has `_START_LIMIT_S` to register."""
    return replaced(services, "get_node", partial(_registered_node, services.get_node, directory))


def _registered_node(get_node: Callable[[str, str], T], directory: str, gcs_address: str, node_id: str) -> T:
    deadline = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            return get_node(gcs_address, node_id)
        except RuntimeError:  # it has not registered
            if "Ray's raylet" not in vital_processes(directory).values() or time.monotonic() > deadline:
                raise
        time.sleep(_START_POLL_S)


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
