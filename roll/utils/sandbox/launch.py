"""What the ways into the sandbox have in common: a command line, and what its process gets."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from roll.utils.sandbox.job import Job

NOBODY = 65534  # the user's number inside a user namespace
_MOST_TRIED = 1000
KEPT = ("ROLL_RUNTIME_DIRECTORY",)  # the mark by which a run finds what is left of it; the job itself does not get it


Hold = Callable[[bytes], int]
"""Gives a descriptor from which the command can read these bytes. They are memory: nothing is left of them."""


@dataclass(frozen=True)
class Launch:
    """A command that reports to the descriptor `status`, in JSON, the job's exit code, or what kept it from running; if
    it says neither, it was killed. `user`: whom it runs as, None for who we are."""

    command: Sequence[str]
    user: int | None


class Means(Protocol):
    """A way into the sandbox. `name` says which, and whether it takes root's privileges to set the sandbox up."""

    @property
    def name(self) -> str: ...

    def launch(self, job: Job, status: int, hold: Hold) -> Launch: ...


def job_user(users: tuple[int, int]) -> int:
    """Whom jobs run as where root starts them: nobody that exists, since the kernel counts threads and pipes by user,
    and another number for each process that starts jobs, so that it counts them apart. Raises OSError where all belong
    to somebody."""
    return _nobody(users, os.getpid())


@cache
def _nobody(users: tuple[int, int], process: int) -> int:
    first, last = users
    count = last - first + 1
    for step in range(min(count, _MOST_TRIED)):
        user = first + (process + step) % count
        if not _exists(user):
            return user
    raise OSError(f"sandbox_uids: users {first} to {last} are people or services of this machine: name others")


def _exists(user: int) -> bool:
    """True if a user or group with this id exists, also in a directory such as LDAP if the machine uses one."""
    for found in (pwd.getpwuid, grp.getgrgid):
        try:
            found(user)
        except KeyError:
            continue
        return True
    return False


class Holder:
    """Keeps what commands read from descriptors until they have been started."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def hold(self, content: bytes) -> int:
        fd = os.memfd_create("content")
        self.fds.append(fd)
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()
