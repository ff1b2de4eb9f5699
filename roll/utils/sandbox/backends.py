"""The sandbox as a command line of bubblewrap, https://github.com/containers/bubblewrap."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from roll.utils.sandbox import seccomp
from roll.utils.sandbox.job import (
    BOX,
    DEVICES,
    DOOR_PORT,
    MIB,
    NOBODY,
    SCRATCH,
    USERS,
    Hold,
    Job,
    Launch,
    Limits,
    SandboxBackend,
    job_user,
    view,
)
from roll.utils.sandbox.process import SandboxError, run
from roll.utils.sandbox.seccomp import program

NAMESPACES = ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
NEEDED_TO_BECOME_NOBODY = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
HELPERS = ("/usr/bin/setpriv", "/usr/bin/prlimit")  # of util-linux


@dataclass(frozen=True)
class Bubblewrap:
    """Sandbox by bubblewrap. With `privileged`, root sets it up without a user namespace, and `setpriv` gives up all
    rights inside: so files that only root can reach can be shown (a Python below /root). Otherwise it uses a user
    namespace."""

    executable: str
    privileged: bool

    @property
    def name(self) -> str:
        return f"{self.executable} ({'as root' if self.privileged else 'user namespace'})"

    def launch(self, job: Job, status: int, hold: Hold, door: int | None = None) -> Launch:
        assert door is None, "see find_means"
        command = [self.executable, *self._options(job, status, hold), "--", *self._prefix(job), *job.command]
        user = job_user(job.limits.users) if not self.privileged and os.geteuid() == 0 else None
        return Launch(command, user)

    def _options(self, job: Job, status: int, hold: Hold) -> Iterator[str]:
        yield from (*NAMESPACES, "--hostname", "sandbox", "--die-with-parent", "--new-session", "--clearenv")
        for name, value in job.variables.items():
            yield from ("--setenv", name, value)
        yield from ("--perms", "1777", "--size", str(job.limits.disk_mb * MIB), "--tmpfs", SCRATCH)
        for folder in job.view.folders:
            if folder != SCRATCH:
                yield from ("--perms", "0755", "--dir", folder)
        for path in job.view.paths:
            yield from ("--ro-bind", path, path)
        for target, place in job.view.links:
            yield from ("--symlink", target, place)
        for device in DEVICES:
            yield from ("--dev-bind", device, device)
        for name, content in job.files.items():
            yield from ("--perms", "0555", "--file", str(hold(content)), f"{BOX}/{name}")
        yield from ("--remount-ro", "/", "--chdir", SCRATCH)
        yield from (
            "--seccomp",
            str(hold(program(job.may_fork, self.privileged))),
            "--json-status-fd",
            str(status),
            "--cap-drop",
            "ALL",
        )
        if self.privileged:
            for capability in NEEDED_TO_BECOME_NOBODY:
                yield from ("--cap-add", capability)
        else:
            yield from ("--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY))

    def _prefix(self, job: Job) -> Iterator[str]:
        setpriv, prlimit = HELPERS
        if self.privileged:
            user = str(job_user(job.limits.users))
            yield from (setpriv, "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs")
            yield from ("--bounding-set=-all", "--inh-caps=-all")
        yield prlimit
        for name, (soft, hard) in job.resources.items():
            yield f"--{name}={soft}:{hard}"


# The sandbox by the kernel's own means, for machines without bubblewrap: Python and libseccomp are all that it takes.
#
# Namespaces, a root of its own, no capabilities, limits and a filter of system calls are set up by `stage.py` in the
# same order and with the same results as bubblewrap does it. Why both: bubblewrap is what the world looks at, and is
# taken where it is; a container without it, or without the rights to install it, should not have to go without code
# rewards. The number of files in /tmp is limited here only: bubblewrap has no option for it.

STAGE = Path(__file__).with_name("stage.py")
MAX_FILES = 4096


@dataclass(frozen=True)
class Namespaces:
    """Sandbox by the kernel's namespaces. With `privileged`, root sets it up and becomes a user without rights;
    otherwise it uses a user namespace."""

    privileged: bool

    @property
    def name(self) -> str:
        return f"namespaces of the kernel ({'as root' if self.privileged else 'user namespace'})"

    def launch(self, job: Job, status: int, hold: Hold, door: int | None = None) -> Launch:
        task = {
            "parent": os.getpid(),
            "privileged": self.privileged,
            "user": job_user(job.limits.users) if self.privileged else NOBODY,
            "command": job.command,
            "environment": job.variables,
            "resources": job.resources,
            "paths": job.view.paths,
            "links": job.view.links,
            "folders": job.view.folders,
            "devices": DEVICES,
            "box": BOX,
            "scratch": SCRATCH,
            "disk": job.limits.disk_mb * MIB,
            "inodes": MAX_FILES,
            "files": {name: hold(content) for name, content in job.files.items()},
            "filter": hold(program(job.may_fork, becomes_nobody=False, has_sockets=job.has_door)),
            "status": status,
            "door": door,
            "port": DOOR_PORT,
        }
        orders, source = hold(json.dumps(task).encode()), STAGE.read_text(encoding="utf-8")
        user = job_user(job.limits.users) if not self.privileged and os.geteuid() == 0 else None
        return Launch((_interpreter(), "-I", "-S", "-B", "-c", source, str(orders)), user)


def _interpreter() -> str:
    """The Python that this environment was made from: it starts without the environment's packages."""
    return os.path.realpath(sys.executable)


# Which way into the sandbox this machine has: the first that really works.

PROBE = Job(("/usr/bin/true",), view(), Limits(cpu_s=10, wall_s=60, memory_mb=256, disk_mb=1))


class SandboxUnavailable(Exception):
    """Raised if this machine has no sandbox. The text says why and what to install."""


@cache
def find_means(*shown: str, users: tuple[int, int] = USERS, has_door: bool = False) -> SandboxBackend:
    """Bubblewrap if it is there, the kernel's namespaces otherwise, which alone have doors; `shown` are paths that jobs
    have to see, `users` as in `Limits`.

    Where root can set the sandbox up itself it does, and the job becomes a user without rights inside. Raises
    SandboxUnavailable.
    """
    if not seccomp.is_installed():
        raise SandboxUnavailable("libseccomp is not installed. Install it: apt install libseccomp2")
    why = []
    for means in candidates():
        if has_door and not isinstance(means, Namespaces):
            continue
        failure = problem(means, *shown, users=users, has_door=has_door)
        if failure is None:
            return means
        why.append(f"{means.name}: {failure}")
    allow = (
        "allow user namespaces (sysctl user.max_user_namespaces; a container needs "
        "--security-opt seccomp=unconfined or --cap-add SYS_ADMIN)"
    )
    if has_door:
        apart = f"programs cannot be run apart from this machine ({'; '.join(why)})"
        raise SandboxUnavailable(f"{apart}. What helps: {allow}")
    raise SandboxUnavailable(
        f"code cannot be run apart from this machine ({'; '.join(why)}). Install bubblewrap (apt install bubblewrap) "
        f"and {allow}, or set code_url to a sandbox elsewhere"
    )


def candidates() -> Iterator[SandboxBackend]:
    executable = shutil.which("bwrap")
    if executable is not None and all(map(os.path.exists, HELPERS)):
        yield from (Bubblewrap(executable, privileged) for privileged in _ways())
    yield from (Namespaces(privileged) for privileged in _ways())


def _ways() -> tuple[bool, ...]:
    return (True, False) if os.geteuid() == 0 else (False,)


def problem(means: SandboxBackend, *shown: str, users: tuple[int, int] = USERS, has_door: bool = False) -> str | None:
    """Why nothing can be run this way; None if it can."""
    try:
        limits = replace(PROBE.limits, users=users)
        finished = run(Job(PROBE.command, view(*shown), limits, has_door=has_door), means)
    except SandboxError as error:
        return str(error).removeprefix(f"{means.name}: ")
    return None if finished.is_fine else finished.stderr.decode(errors="replace").strip() or f"exit {finished.code}"
