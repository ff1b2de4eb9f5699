"""Builds the sandbox around itself and runs a job in it; a program of its own, which imports nothing of roll.

`python -I -S -c <this file> <fd>`: the descriptor holds what to do, as JSON (see job.py). Three processes: the
first waits outside, the second is number 1 of the sandbox's processes, all of which end with it, the third becomes the
job. Each ends with the one before it. A job that judges what it starts (`is_first`) becomes number 1 itself: the kernel
lets no process inside signal it.
"""

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_RDONLY, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 32, 1, 4096, 16384, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 22, 4, 38
PR_CAPBSET_DROP = 24
SECCOMP_MODE_FILTER = 2
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
CAPABILITIES_VERSION_3 = 0x20080522
MOUNT_SETATTR = 442  # the same number on every architecture
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

libc = ctypes.CDLL(None, use_errno=True)


def checked(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def prctl(option, *values):
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    checked(libc.prctl(option, *arguments), f"prctl {option}")


def mount(source, target, kind, flags, options=None):
    text = [None if value is None else os.fsencode(value) for value in (source, target, kind, options)]
    checked(libc.mount(text[0], text[1], text[2], ctypes.c_ulong(flags), text[3]), f"mount {target}")


def restrict(path, attributes):
    """Sets these of a mount and of all below it."""
    values = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    number, size = ctypes.c_long(MOUNT_SETATTR), ctypes.c_size_t(ctypes.sizeof(values))
    result = libc.syscall(number, AT_FDCWD, os.fsencode(path), AT_RECURSIVE, ctypes.byref(values), size)
    checked(result, f"mount_setattr {path}")


def open_door(door, port):
    """Listens on the loopback of the new network, and hands the socket to who answers there: outside, for a socket
    stays in the network in which it was made."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
    with socket.socket(fileno=door) as way, socket.create_server(("127.0.0.1", port), backlog=128) as listener:
        socket.send_fds(way, [b"door"], [listener.fileno()])


def leave_namespaces(task):
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
    user, group = os.geteuid(), os.getegid()
    checked(libc.unshare(flags | (0 if task["privileged"] else CLONE_NEWUSER)), "unshare")
    if not task["privileged"]:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{task['user']} {user} 1")):
            write(f"/proc/self/{name}", text)
        write("/proc/self/gid_map", f"{task['user']} {group} 1")


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def build_root(task, contents):
    """A new root in memory, small and read-only but for /tmp. The old one is gone afterwards."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    sources = {path: os.open(path, os.O_PATH) for path in task["paths"] + task["devices"]}
    root = "/tmp"  # there is one everywhere; what is in it is reached by the descriptors
    size = sum(map(len, contents.values())) + 2**20
    mount("root", root, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=0755,size={size},nr_inodes=4096")
    scratch = root + task["scratch"]
    os.mkdir(scratch)
    options = f"mode=1777,size={task['disk']},nr_inodes={task['inodes']}"
    mount("scratch", scratch, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for disk in task["disks"]:
        os.makedirs(root + disk)
        mount("disk", root + disk, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for folder in task["folders"]:
        os.makedirs(root + folder, mode=0o755, exist_ok=True)
    for path, source in sources.items():
        if os.path.isdir(f"/proc/self/fd/{source}"):
            os.makedirs(root + path, mode=0o755, exist_ok=True)
        else:
            os.close(os.open(root + path, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(f"/proc/self/fd/{source}", root + path, None, MS_BIND | MS_REC)
        is_device = path in task["devices"]
        restrict(root + path, ATTR_NOSUID | (0 if is_device else ATTR_RDONLY | ATTR_NODEV))
        os.close(source)
    for target, place in task["links"]:
        os.symlink(target, root + place)
    for name, content in contents.items():
        path = f"{root}{task['box']}/{name}"
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, 0o555)
    mount(None, root, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir(root)
    checked(libc.syscall(ctypes.c_long(PIVOT_ROOT[os.uname().machine]), b".", b"."), "pivot_root")
    checked(libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir(task["scratch"])


def become_nobody(task):
    """No user, no group, no capability, and no way to any by a program."""
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
    if task["privileged"]:
        os.setgroups([])
        os.setresgid(task["user"], task["user"], task["user"])
        os.setresuid(task["user"], task["user"], task["user"])
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION_3, 0)
    checked(libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())), "capset")
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_DUMPABLE, 0)


def run(task, program, report):
    """Becomes the job."""
    os.setsid()
    for name, limits in task["resources"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), tuple(limits))
    os.closerange(3, report)
    os.closerange(report + 1, 2**16)
    keep = ctypes.create_string_buffer(program, len(program))
    filter = (ctypes.c_uint64 * 2)(len(program) // 8, ctypes.addressof(keep))  # struct sock_fprog
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(filter))
    os.execve(task["command"][0], task["command"], task["environment"])


def follow(parent_is_gone):
    """Ends with the parent, even if that died a moment ago."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([parent_is_gone], [], [], 0)[0]:
        os._exit(1)


def child(body, report, started=lambda pid: None):
    """Does this in a process of its own; gives its exit code, 128 and the signal where one ended it. What goes wrong is
    told to `report`, its number to `started`."""
    parent_is_gone, parent = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(parent)
            follow(parent_is_gone)
            body(parent_is_gone)
        except BaseException as error:
            os.write(report, str(error).encode())
        os._exit(1)
    os.close(parent_is_gone)
    started(pid)
    while (ended := os.waitpid(-1, 0))[0] != pid:
        continue  # an orphan: its place among the user's processes is free again
    status = ended[1]
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def report_to(fd, report):
    os.write(fd, json.dumps(report).encode() + b"\n")


def read_all(fd):
    with open(fd, "rb") as file:
        return file.read()


def main():
    task = json.loads(read_all(int(sys.argv[1])))
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != task["parent"]:
        return
    contents = {name: read_all(fd) for name, fd in task["files"].items()}
    program = read_all(task["filter"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever ignores it cannot wait for a child
    reported, report = os.pipe()

    def first(parent_is_gone):
        os.close(task["status"])
        socket.sethostname("sandbox")
        build_root(task, contents)
        become_nobody(task)
        follow(parent_is_gone)  # once more: the kernel forgets it where the user changes
        if task["is_first"]:
            run(task, program, report)
        os._exit(child(lambda _: run(task, program, report), report))

    code = None
    try:
        leave_namespaces(task)
        if task["door"] is not None:
            open_door(task["door"], task["port"])
        code = child(first, report, lambda pid: report_to(task["status"], {"child-pid": pid}))
    except OSError as error:
        os.write(report, str(error).encode())
    os.close(report)
    said = os.read(reported, 4096)
    report_to(task["status"], {"error": said.decode(errors="replace")} if said else {"exit-code": code})


main()
