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


# Every one of these does not exist for a job: it is not even refused by the kernel's own rules, which may have faults.
CALLS = {
    "trace another process": "call('ptrace', 16, 1, 0, 0)",
    "let itself be traced": "call('ptrace', 0, 0, 0, 0)",
    "mount": "call('mount', b'none', b'/tmp', b'tmpfs', 0, 0)",
    "unmount": "call('umount2', b'/tmp', 2)",
    "bind mount": "call('mount', b'/', b'/tmp', b'', 4096, 0)",
    "remount the root for writing": "call('mount', b'', b'/', b'', 32, 0)",
    "change the root by pivot_root": "call('pivot_root', b'/tmp', b'/tmp')",
    "change the root by chroot": "call('chroot', b'/tmp')",
    "make a user namespace": "call('unshare', 0x10000000)",
    "make a mount namespace": "call('unshare', 0x00020000)",
    "make a network namespace": "call('unshare', 0x40000000)",
    "make a process namespace": "call('unshare', 0x20000000)",
    "enter a namespace": "call('setns', 0, 0)",
    # The kernel knows this call, and would refuse what else is missing in it with EINVAL.
    "start a thread in a user namespace": "call('clone', 0x10000000 | 0x00010000, 0, 0, 0, 0)",
    "start a thread in a network namespace": "call('clone', 0x40000000 | 0x00010000, 0, 0, 0, 0)",
    "clone3": "call('clone3', b'\\0' * 64, 64)",
    "io_uring": "call('io_uring_setup', 8, b'\\0' * 120)",
    "keyctl, the session's keys": "call('keyctl', 0, -3, 0, 0, 0)",
    "add a key": "call('add_key', b'user', b'x', b'y', 1, -3)",
    "bpf": "call('bpf', 0, b'\\0' * 64, 64)",
    "perf_event_open": "call('perf_event_open', b'\\0' * 128, 0, -1, -1, 0)",
    "userfaultfd": "call('userfaultfd', 1)",
    "read the memory of process 1": "call('process_vm_readv', 1, 0, 0, 0, 0, 0)",
    "write the memory of process 1": "call('process_vm_writev', 1, 0, 0, 0, 0, 0)",
    "load a module": "call('init_module', b'x', 1, b'')",
    "load a module from a file": "call('finit_module', 0, b'', 0)",
    "load another kernel": "call('kexec_load', 0, 0, 0, 0)",
    "reboot": "call('reboot', 0xfee1dead, 672274793, 0x1234567, 0)",
    "swap": "call('swapon', b'/tmp/x', 0)",
    "open a file by its handle": "call('open_by_handle_at', -100, b'\\0' * 64, 0)",
    "ask for a file's handle": "call('name_to_handle_at', -100, b'/', b'\\0' * 64, b'\\0' * 8, 0)",
    "a handle on process 1": "call('pidfd_open', 1, 0)",
    "take a descriptor of process 1": "call('pidfd_getfd', 3, 0, 0)",
    "memory as a file, beyond the limit": "call('memfd_create', b'x', 0)",
    "secret memory": "call('memfd_secret', 0)",
    "System V shared memory": "call('shmget', 0, 1 << 30, 0o1777)",
    "System V semaphores": "call('semget', 0, 1, 0o1777)",
    "System V messages": "call('msgget', 0, 0o1777)",
    "POSIX message queues": "call('mq_open', b'x', 0o102, 0o777, 0)",
    "another personality": "call('personality', 0x0040000)",
    "quotas": "call('quotactl', 0, 0, 0, 0)",
    "accounting": "call('acct', b'/tmp/x')",
    "set the clock": "call('settimeofday', b'\\0' * 16, 0)",
    "set the clock, the newer way": "call('clock_settime', 0, b'\\0' * 16)",
    "rename the host": "call('sethostname', b'x', 1)",
    "read the kernel's log": "call('syslog', 3, b'\\0' * 64, 64)",
    "watch the file system": "call('fanotify_init', 0, 0)",
    "watch files": "call('inotify_init1', 0)",
    "new mount interface: open_tree": "call('open_tree', -100, b'/', 1)",
    "new mount interface: fsopen": "call('fsopen', b'tmpfs', 0)",
    "new mount interface: move_mount": "call('move_mount', 0, b'', -100, b'/tmp', 4)",
    "new mount interface: mount_setattr": "call('mount_setattr', -100, b'/', 0, b'\\0' * 32, 32)",
    "run a program without a path": "call('execveat', 0, b'', 0, 0, 0x1000)",
    "put another filter on top": "call('seccomp', 1, 0, 0)",
    "give pages to a pipe": "call('vmsplice', 1, 0, 0, 0)",
    "move pages of another process": "call('move_pages', 1, 0, 0, 0, 0, 0)",
    "compare with another process": "call('kcmp', 1, 2, 0, 0, 0)",
    "advise another process's memory": "call('process_madvise', 3, 0, 0, 0, 0)",
    "lock all memory": "call('mlockall', 3)",
    "a better priority": "call('setpriority', 0, 0, -20)",
    "another processor": "call('sched_setaffinity', 0, 8, b'\\xff' * 8)",
    "make a device": "call('mknodat', -100, b'/tmp/disk', 0o60666, 0x800)",
    "give a file away": "call('fchownat', -100, b'/tmp', 0, 0, 0)",
    "change the user of file access": "call('setfsuid', 0)",
    "a network socket": "attempt(socket.socket, socket.AF_INET)",
    "a network socket, version 6": "attempt(socket.socket, socket.AF_INET6)",
    "a raw socket": "attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)",
    "a packet socket": "attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)",
    "a socket to the kernel": "attempt(socket.socket, 16, socket.SOCK_RAW)",
    "a unix socket": "attempt(socket.socket, socket.AF_UNIX)",
    "a socket to the hypervisor": "attempt(socket.socket, 40)",
    "a crypto socket": "attempt(socket.socket, 38, 5)",
    "fork": "attempt(os.fork)",
    "start a program beside itself": "attempt(os.posix_spawn, '/usr/bin/true', ['true'], {})",
}


@pytest.fixture(scope="module")
def calls(means: Namespaces) -> dict[str, object]:
    lines = "\n".join(f"found[{name!r}] = {code}" for name, code in CALLS.items())
    finished = run(python_job(f"{PRELUDE}\nfound = {{}}\n{lines}\ntell(found)"), means)
    assert finished.is_fine, finished
    return json.loads(finished.stdout)


@pytest.mark.parametrize("name", CALLS)
def test_a_system_call_that_no_program_needs_does_not_exist(calls: dict[str, object], name: str) -> None:
    assert calls[name] == "ENOSYS"


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


def test_a_pair_of_sockets_reaches_nobody_else(told: Ask) -> None:
    code = (
        "a, b = socket.socketpair()\n"
        "tell([attempt(a.connect, '\\0abstract'), attempt(a.bind, '\\0x'), attempt(a.listen)])"
    )
    assert told(code) == ["ENOSYS"] * 3


def test_a_descriptor_cannot_be_sent_anywhere(told: Ask) -> None:
    code = "a, b = socket.socketpair()\ntell(attempt(socket.send_fds, a, [b'x'], [0]))"
    assert told(code) == "ENOSYS"


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


def test_a_bomb_of_processes_starts_none(told: Ask) -> None:
    code = "n = 0\nfor i in range(1000):\n    n += attempt(os.fork) != 'ENOSYS'\ntell(n)"
    assert told(code) == 0


def test_a_bomb_of_threads_ends_at_the_limit(told: Ask) -> None:
    code = """
import threading
threading.stack_size(65536)
stop, n = threading.Event(), 0
try:
    for n in range(1000): threading.Thread(target=stop.wait, daemon=True).start()
except RuntimeError: pass
tell(n)
"""
    assert 0 < int(str(told(code))) <= LIMITS.threads


def test_a_bomb_of_memory_ends_at_the_limit(told: Ask) -> None:
    code = (
        "held = []\n"
        "try:\n"
        "    while True: held.append(bytearray(2**20))\n"
        "except MemoryError:\n"
        "    n = len(held); del held\n"
        "tell(n)"
    )
    assert 0 < int(str(told(code))) < LIMITS.memory_mb


def test_mappings_without_end_end_at_the_limit(told: Ask) -> None:
    code = (
        "import mmap\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(mmap.mmap(-1, 2**24))\n"
        "except OSError as error: tell(len(held))"
    )
    assert 0 < int(str(told(code))) * 16 < LIMITS.memory_mb


def test_a_full_disk_is_full_at_the_limit(told: Ask) -> None:
    code = """
n = 0
try:
    for i in range(1000):
        with open(f'/tmp/{i}', 'wb', buffering=0) as file:
            n += file.write(bytes(2**20))
except OSError as error: tell([n, errno.errorcode[error.errno]])
"""
    written, error = told(code)
    assert 0 < written <= LIMITS.disk_mb * 2**20 and error == "ENOSPC"


def test_one_huge_file_ends_at_the_limit(told: Ask) -> None:
    code = (
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "file = open('/tmp/x', 'wb')\n"
        "tell(attempt(os.truncate, '/tmp/x', 2**40))"
    )
    assert told(code) == "EFBIG"


def test_files_without_end_end_at_the_limit(told: Ask) -> None:
    code = (
        "n = 0\n"
        "try:\n"
        "    for n in range(10**6): open(f'/tmp/{n}', 'w').close()\n"
        "except OSError as error: tell([n, errno.errorcode[error.errno]])"
    )
    count, error = told(code)
    assert count <= 4096 and error == "ENOSPC"


def test_descriptors_end_at_the_limit(told: Ask) -> None:
    code = (
        "held = []\n"
        "try:\n"
        "    while True: held.append(os.pipe())\n"
        "except OSError as error: tell([len(held), errno.errorcode[error.errno]])"
    )
    count, error = told(code)
    assert count < 128 and error == "EMFILE"


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
