"""What the ways into the sandbox have in common: a command line, and what its process gets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from roll.utils.sandbox.job import Job

NOBODY = 65534  # the user's number inside a user namespace
FIRST_USER, NUM_USERS = 20_000, 40_000
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


def job_user() -> int:
    """Whom jobs run as where root starts them: nobody that exists, so that the kernel counts their threads, and another
    number for each process that starts jobs, so that it counts them apart."""
    return FIRST_USER + os.getpid() % NUM_USERS


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
