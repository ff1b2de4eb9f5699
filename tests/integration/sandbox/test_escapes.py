"""Attempts to get out of the sandbox, each with what becomes of it. None may see, change or outlive anything.

An attempt is a job like an answer's: it prints what it got. What it prints, and what the world outside looks like
afterwards, decides. Attempts in C go through ctypes: `call(name, ...)` is a system call by its number, with the error's
name as result where it fails.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roll.utils.sandbox.job import Namespaces
from roll.utils.sandbox.process import Process, run
from tests.integration.sandbox.conftest import LIBRARY, LIMITS, PYTHON, Run, python_job
from tests.integration.sandbox.test_process import processes_with

PRELUDE = """
import ctypes, errno, json, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {'x86_64': 0, 'aarch64': 1}
TABLE = {
    'ptrace': (101, 117), 'mount': (165, 40), 'umount2': (166, 39), 'pivot_root': (155, 41), 'unshare': (272, 97),
    'setns': (308, 268), 'chroot': (161, 51), 'io_uring_setup': (425, 425), 'keyctl': (250, 219), 'add_key': (248, 217),
    'bpf': (321, 280), 'perf_event_open': (298, 241), 'userfaultfd': (323, 282), 'process_vm_readv': (310, 270),
    'process_vm_writev': (311, 271), 'init_module': (175, 105), 'finit_module': (313, 273), 'kexec_load': (246, 104),
    'reboot': (169, 142), 'swapon': (167, 224), 'open_by_handle_at': (304, 265), 'name_to_handle_at': (303, 264),
    'clone': (56, 220), 'clone3': (435, 435), 'pidfd_open': (434, 434), 'pidfd_getfd': (438, 438),
    'memfd_create': (319, 279),
    'memfd_secret': (447, 447), 'shmget': (29, 194), 'semget': (64, 190), 'msgget': (68, 186), 'mq_open': (240, 180),
    'personality': (135, 92), 'quotactl': (179, 60), 'acct': (163, 89), 'settimeofday': (164, 170),
    'clock_settime': (227, 112), 'sethostname': (170, 161), 'syslog': (103, 116), 'fanotify_init': (300, 262),
    'inotify_init1': (294, 26), 'landlock_create_ruleset': (444, 444), 'open_tree': (428, 428), 'fsopen': (430, 430),
    'move_mount': (429, 429), 'mount_setattr': (442, 442), 'execveat': (322, 281), 'seccomp': (317, 277),
    'modify_ldt': (154, 154), 'iopl': (172, 172), 'ioperm': (173, 173), 'vmsplice': (278, 75), 'splice': (275, 76),
    'tee': (276, 77), 'lookup_dcookie': (212, 18), 'migrate_pages': (256, 238), 'move_pages': (279, 239),
    'kcmp': (312, 272), 'process_madvise': (440, 440), 'mlockall': (151, 230), 'setpriority': (141, 140),
    'sched_setaffinity': (203, 122), 'ioprio_set': (251, 30), 'rt_tgsigqueueinfo': (297, 240),
    'setxattr': (188, 5), 'mknodat': (259, 33), 'fchownat': (260, 54), 'setfsuid': (122, 151),
}
def call(name, *arguments):
    ctypes.set_errno(0)
    number = TABLE[name][NUMBERS[os.uname().machine]]
    result = libc.syscall(ctypes.c_long(number), *(a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments))
    return errno.errorcode[ctypes.get_errno()] if result == -1 else result
def attempt(function, *arguments):
    try: return function(*arguments)
    except OSError as error: return errno.errorcode.get(error.errno, str(error))
    except Exception as error: return type(error).__name__
def tell(value): print(json.dumps(value, default=str), flush=True)
"""


Ask = Callable[..., Any]


@pytest.fixture
def told(run_python: Run) -> Ask:
    """What an attempt tells, as JSON."""

    def ask(code: str, *arguments: str) -> Any:
        finished = run_python(PRELUDE + code, *arguments)
        assert finished.is_fine, finished
        return json.loads(finished.stdout)

    return ask


# None of these exists for a job, whatever its arguments: it is not even refused by the kernel's own rules, which may
# have faults. Beside every call of TABLE:
CALLS = {
    # The kernel knows this call, and would refuse what else is missing in it with EINVAL.
    "start a thread in a user namespace": "call('clone', 0x10000000 | 0x00010000, 0, 0, 0, 0)",
    "start a thread in a network namespace": "call('clone', 0x40000000 | 0x00010000, 0, 0, 0, 0)",
    "fork": "attempt(os.fork)",
    "start a program beside itself": "attempt(os.posix_spawn, '/usr/bin/true', ['true'], {})",
    "a raw socket": "attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)",
    "a socket to the kernel": "attempt(socket.socket, 16, socket.SOCK_RAW)",
    "a crypto socket": "attempt(socket.socket, 38, 5)",
} | {
    f"a {kind} socket": f"attempt(socket.socket, socket.{kind})"
    for kind in ("AF_INET", "AF_INET6", "AF_PACKET", "AF_UNIX", "AF_VSOCK")
}


@pytest.fixture(scope="module")
def calls(means: Namespaces) -> dict[str, object]:
    lines = "\n".join(f"found[{name!r}] = {code}" for name, code in CALLS.items())
    every = "found = {name: call(name, 0, 0, 0, 0, 0, 0) for name in TABLE if name != 'clone'}"
    finished = run(python_job(f"{PRELUDE}\n{every}\n{lines}\ntell(found)"), means)
    assert finished.is_fine, finished
    return json.loads(finished.stdout)


def test_a_system_call_that_no_program_needs_does_not_exist(calls: dict[str, object]) -> None:
    assert {name: said for name, said in calls.items() if said != "ENOSYS"} == {}
    assert len(calls) > 60


SEEN = {
    "processes in /proc": ("attempt(os.listdir, '/proc')", "ENOENT"),
    "its own memory in /proc": ("attempt(open, '/proc/self/mem', 'rb')", "ENOENT"),
    "the kernel in /sys": ("attempt(os.listdir, '/sys')", "ENOENT"),
    "control groups": ("attempt(os.listdir, '/sys/fs/cgroup')", "ENOENT"),
    "users": ("attempt(open, '/etc/passwd')", "ENOENT"),
    "passwords": ("attempt(open, '/etc/shadow')", "ENOENT"),
    "the host's name": ("os.uname().nodename", "sandbox"),
    "keys in homes": ("[attempt(os.listdir, f'{home}/.ssh') for home in ('/root', '/home')]", ["ENOENT", "ENOENT"]),
    "logs and databases": ("attempt(os.listdir, '/var')", "ENOENT"),
    "sockets of daemons": ("attempt(os.listdir, '/run')", "ENOENT"),
    "the host's /tmp": ("os.listdir('/tmp')", []),
    "shared memory": ("attempt(os.listdir, '/dev/shm')", "ENOENT"),
    "devices": ("sorted(os.listdir('/dev'))", ["full", "null", "random", "urandom", "zero"]),
    "disks": ("attempt(open, '/dev/vda', 'rb')", "ENOENT"),
    "memory as a device": ("attempt(open, '/dev/mem', 'rb')", "ENOENT"),
    "virtual machines": ("attempt(open, '/dev/kvm', 'rb')", "ENOENT"),
    "a terminal of its own": ("attempt(os.openpty)", "ENOENT"),
    "terminals": ("[attempt(open, '/dev/tty'), attempt(open, '/dev/ptmx')]", ["ENOENT", "ENOENT"]),
    "GPUs": ("[name for name in os.listdir('/dev') if name.startswith('nvidia')]", []),
    "its own number": ("os.getpid() <= 3", True),
    "its starter's number": ("os.getppid() <= 1", True),
    "the machine's processes": ("[attempt(os.kill, pid, 0) for pid in range(4, 500)] == ['ESRCH'] * 496", True),
    "descriptors": ("[fd for fd in range(500) if attempt(os.fstat, fd) != 'EBADF']", [0, 1, 2]),
    "a controlling terminal": ("attempt(os.tcgetpgrp, 0)", "ENOSYS"),
    "type into a terminal": ("attempt(__import__('fcntl').ioctl, 0, 0x5412, b'x')", "ENOSYS"),
    "larger pipes": ("attempt(__import__('fcntl').fcntl, os.pipe()[0], 1031, 1 << 20)", "ENOSYS"),
    "larger buffers of sockets": (
        "attempt(socket.socketpair()[0].setsockopt, socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)",
        "ENOSYS",
    ),
    "a pair of sockets to somebody else": (
        "[attempt(socket.socketpair()[0].connect, '\\0abstract'), attempt(socket.socketpair()[0].bind, '\\0x')]",
        ["ENOSYS", "ENOSYS"],
    ),
    "sending a descriptor": ("attempt(socket.send_fds, socket.socketpair()[0], [b'x'], [0])", "ENOSYS"),
    "its user": ("os.getuid() != 0 and os.geteuid() == os.getuid()", True),
    "its groups": ("0 in os.getgroups() + [os.getgid()]", False),
    "become root": ("[attempt(os.setuid, 0) in ('EPERM', 'ENOSYS', 'EINVAL'), os.getuid() != 0]", [True, True]),
    "become another user": ("attempt(os.setresuid, 1, 1, 1) in ('EPERM', 'ENOSYS', 'EINVAL')", True),
    "root's groups": ("attempt(os.setgroups, [0]) in ('EPERM', 'ENOSYS')", True),
    "higher limits": (
        "attempt(__import__('resource').setrlimit, 9, (1 << 40, 1 << 40))",
        "ValueError",
    ),
    "no new privileges": ("libc.prctl(39, 0, 0, 0, 0)", 1),
    "to undo that": ("libc.prctl(38, 0, 0, 0, 0)", -1),
    "the filter off": ("libc.prctl(22, 0, 0, 0, 0)", -1),
    "capabilities in its bounds": ("any(libc.prctl(23, n, 0, 0, 0) > 0 for n in range(41))", False),
    "ambient capabilities": ("any(libc.prctl(47, 1, n, 0, 0) > 0 for n in range(41))", False),
    "out of the root by dots": ("sorted(os.listdir('/../../..')) == sorted(os.listdir('/'))", True),
    "a link to outside": ("attempt(os.symlink, '/proc/1/root', '/tmp/l') or attempt(os.listdir, '/tmp/l')", "ENOENT"),
    "a link to a secret": ("attempt(os.symlink, '/etc/shadow', '/tmp/l2') or attempt(open, '/tmp/l2')", "ENOENT"),
    "a hard link to a program": ("attempt(os.link, '/usr/bin/su', '/tmp/su')", "EXDEV"),
    "overwrite Python": ("attempt(open, json.__file__, 'w')", "EROFS"),
    "overwrite the interpreter": ("attempt(open, sys.executable, 'wb') in ('EROFS', 'ETXTBSY')", True),
    "a module before Python's": ("attempt(open, os.path.dirname(os.__file__) + '/new_module.py', 'w')", "EROFS"),
    "its own source": ("attempt(open, '/box/job.py', 'w')", "EROFS"),
    "new files beside it": ("attempt(open, '/box/new.py', 'w')", "EROFS"),
    "remove the root's folders": ("attempt(os.rename, '/usr', '/usr2') in ('EROFS', 'EBUSY')", True),
    "write to the root": ("attempt(os.mkdir, '/new')", "EROFS"),
    "a program with a set-user bit": (
        "open('/tmp/s', 'w').close() or attempt(os.chmod, '/tmp/s', 0o4755) or os.statvfs('/tmp').f_flag & 2",
        2,
    ),
    "devices on /tmp": ("os.statvfs('/tmp').f_flag & 4", 4),
    "a named pipe to outside": ("attempt(os.mkfifo, '/tmp/pipe')", "ENOSYS"),
}


@pytest.fixture(scope="module")
def seen(means: Namespaces) -> dict[str, object]:
    lines = "\n".join(f"found[{name!r}] = attempt(lambda: {code})" for name, (code, _) in SEEN.items())
    finished = run(python_job(f"{PRELUDE}\nfound = {{}}\n{lines}\ntell(found)"), means)
    assert finished.is_fine, finished
    return json.loads(finished.stdout)


@pytest.mark.parametrize("name", SEEN)
def test_what_a_job_sees_and_may_do(seen: dict[str, object], name: str) -> None:
    assert seen[name] == SEEN[name][1]


def test_of_the_root_there_is_what_python_and_the_system_need(told: Ask) -> None:
    needed = {Path(path).parts[1] for path in (PYTHON, LIBRARY)}
    assert (
        set(told("tell(os.listdir('/'))"))
        <= {"bin", "box", "dev", "etc", "lib", "lib32", "lib64", "libx32", "tmp", "usr"} | needed
    )


def test_the_environment_of_the_starter_stays_outside(told: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    names = {"PATH", "LANG", "HOME", "TMPDIR", "PWD"}
    assert set(told("tell(list(os.environ))")) <= names


def test_descriptors_of_the_starter_stay_outside(told: Ask, tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w") as file:
        os.set_inheritable(file.fileno(), True)
        assert told("tell([fd for fd in range(500) if attempt(os.fstat, fd) != 'EBADF'])") == [0, 1, 2]


def test_a_file_of_the_host_is_neither_read_nor_written_nor_removed(told: Ask) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        secret = Path(folder, "secret")
        secret.write_text("hunter2")
        secret.chmod(0o666)
        code = (
            "p = sys.argv[1]\ntell([attempt(open, p), attempt(open, p, 'r+'), attempt(os.unlink, p), "
            "attempt(os.rename, p, p + 'x')])"
        )
        assert told(code, str(secret)) == ["ENOENT"] * 4
        assert secret.read_text() == "hunter2"


def test_what_a_job_writes_is_gone_with_it(told: Ask) -> None:
    name = f"roll-{uuid.uuid4().hex}"
    assert told("open('/tmp/' + sys.argv[1], 'w').write('x')\ntell(os.listdir('/tmp'))", name) == [name]
    assert not Path("/tmp", name).exists()
    assert told("tell(os.listdir('/tmp'))") == []


def test_a_server_on_this_machine_is_out_of_reach(told: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = "tell(attempt(socket.create_connection, ('127.0.0.1', int(sys.argv[1]))))"
        assert told(code, str(server.getsockname()[1])) == "ENOSYS"


@pytest.mark.gate("SIGKILL-os.getppid()", "SIGKILL--1", "SIGKILL-1")
@pytest.mark.parametrize("whom", ["os.getppid()", "-1", "1", "0", "-os.getppid()"])
@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM", "SIGSTOP", "SIGINT"])
def test_signals_reach_nobody_outside(means: Namespaces, whom: str, number: str) -> None:
    """A job that stops its own group is stopped itself, and its time ends it."""
    code = f"{PRELUDE}signal.signal(signal.SIGTERM, signal.SIG_IGN)\nattempt(os.kill, {whom}, signal.{number})\ntell(1)"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as witness:
        finished = run(python_job(code, limits=replace(LIMITS, wall_s=5 if "STOP" in number else 300)), means)
        assert finished.ending in ("exit", "time")
        assert witness.poll() is None
        witness.kill()


BOMBS: dict[str, tuple[str, int, str]] = {
    "threads": ("threading.Thread(target=stop.wait, daemon=True).start()", LIMITS.threads, "RuntimeError"),
    "memory": ("held.append(bytearray(2**20))", LIMITS.memory_mb, "MemoryError"),
    "mappings": ("held.append(mmap.mmap(-1, 2**24))", LIMITS.memory_mb // 16, "ENOMEM"),
    "bytes on the disk": ("open(f'/tmp/{n}', 'wb', buffering=0).write(bytes(2**20))", LIMITS.disk_mb, "ENOSPC"),
    "files": ("open(f'/tmp/{n}', 'w').close()", 4096, "ENOSPC"),
    "descriptors": ("held.append(os.pipe())", 128, "EMFILE"),
}
"""What is done again and again, how often at most, and the error that ends it."""


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_at_its_limit(told: Ask, name: str) -> None:
    code, most, error = BOMBS[name]
    job = f"""
import mmap, threading
threading.stack_size(65536)
stop, held, n = threading.Event(), [], 0
def bomb():
    global n
    for n in range(10**6): {code}
error = attempt(bomb)
held.clear()
tell([n, error])
"""
    count, said = told(job)
    assert 0 < count <= most and said == error


def test_one_huge_file_ends_at_the_limit(told: Ask) -> None:
    code = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nopen('/tmp/x', 'w').close()\n"
    assert told(f"{code}tell(attempt(os.truncate, '/tmp/x', 2**40))") == "EFBIG"


def test_no_core_is_written(told: Ask, run_python: Run) -> None:
    assert told("import resource\ntell(resource.getrlimit(resource.RLIMIT_CORE))") == [0, 0]
    assert run_python("import ctypes\nctypes.string_at(0)").code == 128 + signal.SIGSEGV


DYING = {
    "a thread that goes on": "threading.Thread(target=lambda: time.sleep(10**6)).start()",
    "a busy thread": "threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()",
    "streams closed, and asleep": "os.closerange(0, 100); time.sleep(10**6)",
    "streams closed, and busy": "os.closerange(0, 100)\nwhile True: pass",
    "its own session": "attempt(os.setsid); os.closerange(0, 100); time.sleep(10**6)",
    "deaf to signals": "for n in set(range(1, 32)) - {9, 19}: signal.signal(n, signal.SIG_IGN)\ntime.sleep(10**6)",
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "at exit": "import atexit; atexit.register(time.sleep, 10**6)",
    "an alarm of its own": "signal.setitimer(signal.ITIMER_REAL, 10**6); signal.pause()",
    "without the kernel's word on its parent": "libc.prctl(1, 0, 0, 0, 0); time.sleep(10**6)",
}


@pytest.mark.parametrize("name", DYING)
def test_nothing_goes_on_after_the_end(means: Namespaces, name: str) -> None:
    token = uuid.uuid4().hex
    job = python_job(f"{PRELUDE}import threading\n{DYING[name]}\n", token, limits=replace(LIMITS, wall_s=3, cpu_s=2))
    assert run(job, means).ending in ("time", "exit")
    assert processes_with(token) == []


@pytest.mark.parametrize("name", ["its own session", "deaf to signals", "without the kernel's word on its parent"])
def test_nothing_goes_on_after_a_kill(means: Namespaces, name: str) -> None:
    token = uuid.uuid4().hex
    with Process(python_job(f"{PRELUDE}print('up', flush=True)\n{DYING[name]}\n", token), means) as process:
        assert process.stdout.read(2) == b"up"
    assert processes_with(token) == []


def test_a_job_sees_nothing_of_another_that_runs_beside_it(means: Namespaces, told: Ask) -> None:
    code = "open('/tmp/theirs', 'w').close()\nprint('up', flush=True)\nimport time\ntime.sleep(10**6)"
    with Process(python_job(code), means) as process:
        assert process.stdout.read(2) == b"up"
        assert told("tell([os.listdir('/tmp'), [attempt(os.kill, pid, 0) for pid in range(3, 100)]])") == [
            [],
            ["ESRCH"] * 97,
        ]
