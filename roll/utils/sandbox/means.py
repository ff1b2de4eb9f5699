"""Which way into the sandbox this machine has: the first that really works."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from roll.utils.sandbox import seccomp
from roll.utils.sandbox.job import USERS, Job, Limits, view
from roll.utils.sandbox.launch import Means
from roll.utils.sandbox.namespaces import Namespaces
from roll.utils.sandbox.process import SandboxError, run
from roll.utils.sandbox.ways import HELPERS, Bubblewrap

PROBE = Job(("/usr/bin/true",), view(), Limits(cpu_s=10, wall_s=60, memory_mb=256, disk_mb=1))


class SandboxUnavailable(Exception):
    """Raised if this machine has no sandbox. The text says why and what to install."""


@cache
def find_means(*shown: str, users: tuple[int, int] = USERS) -> Means:
    """Bubblewrap if it is there, the kernel's namespaces otherwise; `shown` are paths that jobs have to see, `users` as
    in `Limits`.

    Where root can set the sandbox up itself it does, and the job becomes a user without rights inside. Raises
    SandboxUnavailable.
    """
    if not seccomp.is_installed():
        raise SandboxUnavailable("libseccomp is not installed. Install it: apt install libseccomp2")
    why = []
    for means in candidates():
        failure = problem(means, *shown, users=users)
        if failure is None:
            return means
        why.append(f"{means.name}: {failure}")
    raise SandboxUnavailable(
        f"code cannot be run apart from this machine ({'; '.join(why)}). Install bubblewrap (apt install bubblewrap) "
        "and allow user namespaces (sysctl user.max_user_namespaces; a container needs --security-opt "
        "seccomp=unconfined or --cap-add SYS_ADMIN), or set code_url to a sandbox elsewhere"
    )


def candidates() -> Iterator[Means]:
    executable = shutil.which("bwrap")
    if executable is not None and all(map(os.path.exists, HELPERS)):
        yield from (Bubblewrap(executable, privileged) for privileged in _ways())
    yield from (Namespaces(privileged) for privileged in _ways())


def _ways() -> tuple[bool, ...]:
    return (True, False) if os.geteuid() == 0 else (False,)


def problem(means: Means, *shown: str, users: tuple[int, int] = USERS) -> str | None:
    """Why nothing can be run this way; None if it can."""
    try:
        finished = run(Job(PROBE.command, view(*shown), replace(PROBE.limits, users=users)), means)
    except SandboxError as error:
        return str(error).removeprefix(f"{means.name}: ")
    return None if finished.is_fine else finished.stderr.decode(errors="replace").strip() or f"exit {finished.code}"
