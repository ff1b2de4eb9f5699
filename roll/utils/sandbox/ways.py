"""The sandbox as a command line of bubblewrap, https://github.com/containers/bubblewrap."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from roll.utils.sandbox.job import BOX, DEVICES, MIB, SCRATCH, Job
from roll.utils.sandbox.launch import NOBODY, Hold, Launch, job_user
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

    def launch(self, job: Job, status: int, hold: Hold) -> Launch:
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
