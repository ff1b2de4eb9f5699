"""Description of a job in the sandbox: what it runs, may use, and sees."""

from __future__ import annotations

import grp
import json
import os
import pwd
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from roll.utils.sandbox.seccomp import program

MIB = 2**20
BOX = "/box"  # the files of a job, read-only
DOOR_PORT = 8000  # of 127.0.0.1 inside
STDIN = "stdin"  # the input of a program, among the files
SCRATCH = "/tmp"  # the only place that can be written
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
SYSTEM = ("/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/libexec", "/usr/include")
LINKS = ("/bin", "/lib", "/lib32", "/lib64", "/libx32")  # into /usr, where the distribution has merged them
USERS = range(20_000, 60_000)
"""Ids that jobs may run as if root starts them."""
FILES = ("/etc/ld.so.cache", "/etc/alternatives")


@dataclass(frozen=True)
class Limits:
    """Limits of one job.

    - `cpu_s`: rounded up to whole seconds by the kernel
    - `wall_s`: counted from its start
    - `memory_mb`: address space, with the stack and the libraries in it
    - `output_bytes`: of stdout; of stderr the end is kept
    """

    cpu_s: float = 5.0
    wall_s: float = 15.0
    memory_mb: int = 1024
    disk_mb: int = 64
    output_bytes: int = 4 * MIB
    threads: int = 64


@dataclass(frozen=True)
class View:
    """The directories and files of the host that a job sees, read-only, each at its own place."""

    paths: tuple[str, ...]
    links: tuple[tuple[str, str], ...]  # (target, place)

    @property
    def folders(self) -> list[str]:
        """All directories above what is bound or linked, outer ones first."""
        places = [*self.paths, *(place for _, place in self.links), *DEVICES, f"{BOX}/x"]
        return sorted({str(parent) for place in places for parent in Path(place).parents} - {"/"})


def view(*more: str) -> View:
    """The system's programs and libraries, and `more`; nothing of /home, /etc, /proc, /sys and the rest of /dev."""
    present = [path for path in (*SYSTEM, *LINKS, *FILES) if os.path.lexists(path)]
    links = [path for path in present if os.path.islink(path)]
    paths = [path for path in (*present, *more) if path not in links]
    inner = {path for path in paths for other in paths if path != other and Path(path).is_relative_to(other)}
    return View(
        tuple(dict.fromkeys(path for path in paths if path not in inner)),
        tuple((os.readlink(path), path) for path in links),
    )


@dataclass(frozen=True)
class Job:
    """`command` runs in /tmp with `environment` and nothing else of it; `files` are there as /box/<name>."""

    command: tuple[str, ...]
    view: View
    limits: Limits = Limits()
    files: Mapping[str, bytes] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    may_fork: bool = False  # start processes beside threads, as a compiler does
    has_door: bool = False  # a port of its own loopback, behind which who started the job answers
    is_first: bool = False  # it is process 1, which nothing inside can signal, and has to reap orphans
    disks: tuple[str, ...] = ()  # places beside /tmp that can be written, each as large as /tmp

    def with_stdin(self, content: bytes) -> Job:
        """The job with its input under the name /dev/stdin, too: there is no /proc for the usual link."""
        links = (*self.view.links, (f"{BOX}/{STDIN}", "/dev/stdin"))
        return replace(self, view=replace(self.view, links=links), files={**self.files, STDIN: content})

    @property
    def variables(self) -> dict[str, str]:
        usual = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": SCRATCH, "TMPDIR": SCRATCH}
        return {**usual, **self.environment}

    @property
    def resources(self) -> dict[str, tuple[int, int]]:
        """(soft, hard) of the kernel's limits, by the names of `prlimit` and, in capitals, of `resource`.

        The soft limit of the CPU ends a job with SIGXCPU, the hard one, a second later, whatever it does about that.
        """
        cpu = max(1, -int(-self.limits.cpu_s // 1))
        memory, disk = self.limits.memory_mb * MIB, self.limits.disk_mb * MIB
        stack = min(64 * MIB, memory // 4)
        files = 1024 if self.has_door else 128
        fixed = {"core": 0, "memlock": 65536, "msgqueue": 0, "sigpending": 256, "nofile": files}
        same = fixed | {"as": memory, "fsize": disk, "stack": stack, "nproc": self.limits.threads}
        return {"cpu": (cpu, cpu + 1), **{name: (value, value) for name, value in same.items()}}


def own_python() -> tuple[str, tuple[str, ...]]:
    """The interpreter of this process, and what a job with it has to see: itself and its libraries, not what stands
    beside them, such as conda's other environments."""
    real, base = os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)
    libraries = (f"{base}/{name}" for name in ("lib", sys.platlibdir))
    return real, tuple(dict.fromkeys(path for path in (*libraries, real) if os.path.exists(path)))


NOBODY = 65534  # the user's number inside a user namespace
_MOST_TRIED = 1000
PASSED_VARIABLES = (
    "ROLL_RUNTIME_DIRECTORY",
)  # the mark by which a run finds what is left of it; the job itself does not get it


STAGE = Path(__file__).with_name("stage.py")
MAX_FILES = 4096  # of each disk


@dataclass(frozen=True)
class Namespaces:
    """Sandbox by the kernel's namespaces, see stage.py. With `privileged`, root sets it up and the job becomes a user
    without rights; so files that only root can reach can be shown, such as a Python below /root. Otherwise it uses a
    user namespace."""

    privileged: bool

    @property
    def name(self) -> str:
        return f"namespaces of the kernel ({'as root' if self.privileged else 'user namespace'})"

    def launch(
        self, job: Job, status: int, hold: Callable[[bytes], int], door: int | None
    ) -> tuple[list[str], int | None]:
        """A command that reports to the descriptor `status`, in JSON, the job's exit code, or what kept it from running
        (if it says neither, it was killed), and the user it runs as, None for who we are. `hold` gives a descriptor
        from which the command can read bytes; `door`: a socket to which the listening one of a job with a door is
        sent."""
        task = {
            "parent": os.getpid(),
            "privileged": self.privileged,
            "user": job_user() if self.privileged else NOBODY,
            "command": job.command,
            "environment": job.variables,
            "resources": job.resources,
            "paths": job.view.paths,
            "links": job.view.links,
            "folders": job.view.folders,
            "is_first": job.is_first,
            "devices": DEVICES,
            "box": BOX,
            "scratch": SCRATCH,
            "disks": job.disks,
            "disk": job.limits.disk_mb * MIB,
            "inodes": MAX_FILES,
            "files": {name: hold(content) for name, content in job.files.items()},
            "filter": hold(program(job.may_fork, has_sockets=job.has_door)),
            "status": status,
            "door": door,
            "port": DOOR_PORT,
        }
        orders, source = hold(json.dumps(task).encode()), STAGE.read_text(encoding="utf-8")
        user = job_user() if not self.privileged and os.geteuid() == 0 else None
        interpreter = os.path.realpath(sys.executable)  # without the packages of an environment
        return [interpreter, "-I", "-S", "-B", "-c", source, str(orders)], user


def job_user() -> int:
    """Return the user id that jobs run as if root starts them. No account has it, since the kernel counts threads and
    pipes by user, and each process that starts jobs gets another number, so that they are counted apart. Raises OSError
    if every id that is tried belongs to an account."""
    return _nobody(os.getpid())


@cache
def _nobody(process: int) -> int:
    for step in range(_MOST_TRIED):
        user = USERS[(process + step) % len(USERS)]
        if not _exists(user):
            return user
    raise OSError(f"users {USERS[0]} to {USERS[-1]} are people or services of this machine")


def _exists(user: int) -> bool:
    """True if a user or group with this id exists, also in a directory such as LDAP if the machine uses one."""
    for look_up in (pwd.getpwuid, grp.getgrgid):
        try:
            look_up(user)
        except KeyError:
            continue
        return True
    return False
