"""The sandbox by the kernel's own means, for machines without bubblewrap: Python and libseccomp are all that it takes.

Namespaces, a root of its own, no capabilities, limits and a filter of system calls are set up by `stage.py` in the same
order and with the same results as bubblewrap does it. Why both: bubblewrap is what the world looks at, and is taken
where it is; a container without it, or without the rights to install it, should not have to go without code rewards.
The number of files in /tmp is limited here only: bubblewrap has no option for it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from roll.utils.sandbox.job import BOX, DEVICES, MIB, SCRATCH, Job
from roll.utils.sandbox.launch import NOBODY, Hold, Launch, job_user
from roll.utils.sandbox.seccomp import program

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

    def launch(self, job: Job, status: int, hold: Hold) -> Launch:
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
            "filter": hold(program(job.may_fork, becomes_nobody=False)),
            "status": status,
        }
        orders, source = hold(json.dumps(task).encode()), STAGE.read_text(encoding="utf-8")
        user = job_user(job.limits.users) if not self.privileged and os.geteuid() == 0 else None
        return Launch((_interpreter(), "-I", "-S", "-B", "-c", source, str(orders)), user)


def _interpreter() -> str:
    """The Python that this environment was made from: it starts without the environment's packages."""
    return os.path.realpath(sys.executable)
