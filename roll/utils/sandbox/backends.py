"""Finding the way into the sandbox that this machine has: the first that really works."""

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from roll.utils.sandbox import seccomp
from roll.utils.sandbox.job import USERS, Job, Limits, Namespaces, view
from roll.utils.sandbox.process import SandboxError, run

PROBE = Job(("/usr/bin/true",), view(), Limits(cpu_s=10, wall_s=60, memory_mb=256, disk_mb=1))


class SandboxUnavailable(Exception):
    """Raised if this machine has no sandbox. The text says why and what to install."""


@cache
def find_means(*shown: str, users: tuple[int, int] = USERS, has_door: bool = False) -> Namespaces:
    """The way into the sandbox; `shown` are paths that jobs have to see, `users` as in `Limits`.

    Where root can set the sandbox up itself it does, and the job becomes a user without rights inside. Raises
    SandboxUnavailable.
    """
    if not seccomp.is_installed():
        raise SandboxUnavailable("libseccomp is not installed. Install it: apt install libseccomp2")
    why = []
    for means in candidates():
        failure = problem(means, *shown, users=users, has_door=has_door)
        if failure is None:
            return means
        why.append(f"{means.name}: {failure}")
    raise SandboxUnavailable(
        f"programs cannot be run apart from this machine ({'; '.join(why)}). Allow user namespaces (sysctl "
        "user.max_user_namespaces; a container needs --security-opt seccomp=unconfined or --cap-add SYS_ADMIN)"
    )


def candidates() -> Iterator[Namespaces]:
    yield from (Namespaces(privileged) for privileged in ((True, False) if os.geteuid() == 0 else (False,)))


def problem(means: Namespaces, *shown: str, users: tuple[int, int] = USERS, has_door: bool = False) -> str | None:
    """Why nothing can be run this way; None if it can."""
    try:
        limits = replace(PROBE.limits, users=users)
        finished = run(Job(PROBE.command, view(*shown), limits, has_door=has_door), means)
    except SandboxError as error:
        return str(error).removeprefix(f"{means.name}: ")
    return None if finished.is_fine else finished.stderr.decode(errors="replace").strip() or f"exit {finished.code}"
