"""Finding the way into the sandbox that this machine has: the first that really works."""

import os
from functools import cache

from roll.utils.sandbox import seccomp
from roll.utils.sandbox.job import Job, Limits, Namespaces, view
from roll.utils.sandbox.process import SandboxError, run


class SandboxUnavailable(Exception):
    """Raised if this machine has no sandbox. The text says why and what to install."""


@cache
def find_means(*shown: str, has_door: bool = False) -> Namespaces:
    """The way into the sandbox; `shown` are paths that jobs have to see.

    Where root can set the sandbox up itself it does, and the job becomes a user without rights inside. Raises
    SandboxUnavailable.
    """
    if not seccomp.is_installed():
        raise SandboxUnavailable("libseccomp is not installed. Install it: apt install libseccomp2")
    limits = Limits(cpu_s=10, wall_s=60, memory_mb=256, disk_mb=1)
    probe = Job(("/usr/bin/true",), view(*shown), limits, has_door=has_door)
    why: list[str] = []
    for privileged in (True, False) if os.geteuid() == 0 else (False,):
        means = Namespaces(privileged)
        try:
            finished = run(probe, means)
        except SandboxError as error:
            why.append(str(error))
            continue
        if finished.is_fine:
            return means
        why.append(f"{means.name}: {finished.stderr.decode(errors='replace').strip() or f'exit {finished.code}'}")
    raise SandboxUnavailable(
        f"programs cannot be run apart from this machine ({'; '.join(why)}). Allow user namespaces (sysctl "
        "user.max_user_namespaces; a container needs --security-opt seccomp=unconfined or --cap-add SYS_ADMIN)"
    )
