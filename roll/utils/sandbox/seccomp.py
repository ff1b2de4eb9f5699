"""The filter of system calls, made by libseccomp and kept as a program for the kernel (BPF)."""

import ctypes
import os
from collections.abc import Iterator
from functools import cache

# The system calls that a job may make. All others do not exist for it (ENOSYS), those of future kernels included.
#
# Left out on purpose: whatever makes or enters namespaces, mounts, traces, reads other processes, loads code into the
# kernel or asks it for work in the background (bpf, io_uring, userfaultfd, perf_event_open, keyctl, ptrace, kexec,
# ...), sockets that reach beyond the process, memory that no limit counts (shmget, memfd_create, mq_open; setsockopt
# and F_SETPIPE_SZ, which make buffers larger), file handles.

FILES = """
access chdir chmod close close_range creat dup dup2 dup3 faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat
fchmodat2 fdatasync fgetxattr flistxattr flock fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64
getxattr lgetxattr link linkat listxattr llistxattr lseek lstat mkdir mkdirat newfstatat open openat openat2 pipe pipe2
pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readlink readlinkat readv rename renameat renameat2 rmdir sendfile
stat statfs statx symlink symlinkat truncate umask unlink unlinkat utime utimensat utimes write writev
"""
MEMORY = "brk madvise mincore mmap mprotect mremap msync munmap"
WAITING = """
epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 futex futex_waitv
get_robust_list poll ppoll pselect6 select set_robust_list timerfd_create timerfd_gettime timerfd_settime
"""
TIME = """
alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
timer_delete timer_getoverrun timer_gettime timer_settime times
"""
PROCESS = """
arch_prctl execve exit exit_group getcpu getegid geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority
getrandom getresgid getresuid getrlimit getrusage getsid gettid getuid kill membarrier pause prctl
restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam sched_getscheduler sched_yield
set_tid_address setrlimit setsid sigaltstack sysinfo tgkill tkill uname wait4 waitid
"""
OWN_SOCKETS = "getpeername getsockname getsockopt recvfrom sendto shutdown"  # of socketpair, see seccomp.py
ALLOWED = tuple(f"{FILES} {MEMORY} {WAITING} {TIME} {PROCESS} {OWN_SOCKETS}".split())

SOCKETS = ("accept", "accept4", "bind", "connect", "listen", "recvmsg", "sendmsg")
"""Calls of a job with a door: streams within its own network, which has no way out."""
SOCKET_OPTIONS: tuple[tuple[int, int | None], ...] = ((6, None), (1, 2), (1, 9))
"""(level, option): all of TCP, SO_REUSEADDR, SO_KEEPALIVE; none that makes buffers larger."""

FORKING = ("fork", "vfork")

TERMINAL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""ioctl: TCGETS (isatty), TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""


ENOSYS = 38
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | ENOSYS
NOT_EQUAL, EQUAL, MASKED_EQUAL = 1, 4, 7
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
SOCK_STREAM, SOCK_KINDS = 1, 0xF  # the kind, without its flags
F_SETPIPE_SZ = 1031
CLONE_THREAD = 0x00010000
CLONE_NEW = 0x7E020080  # every namespace: user, pid, net, ipc, uts, cgroup, mount, time
LIBRARY = "libseccomp.so.2"


class _Comparison(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


Rule = tuple[str, tuple[_Comparison, ...]]


def is_installed() -> bool:
    try:
        _library()
    except OSError:
        return False
    return True


@cache
def program(may_fork: bool, has_sockets: bool = False) -> bytes:
    """The filter as an array of `struct sock_filter`. Raises OSError if libseccomp is missing or refuses."""
    library = _library()
    context = library.seccomp_init(REFUSE)
    if not context:
        raise OSError("seccomp_init failed")
    try:
        for name, comparisons in _rules(may_fork, has_sockets):
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number < 0:  # not on this architecture, or unknown to an old libseccomp
                continue
            array = (_Comparison * len(comparisons))(*comparisons)
            _checked(library.seccomp_rule_add_array(context, ALLOW, number, len(comparisons), array), name)
        fd = os.memfd_create("filter")
        try:
            _checked(library.seccomp_export_bpf(context, fd), "export")
            return os.pread(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)
    finally:
        library.seccomp_release(context)


def _rules(may_fork: bool, has_sockets: bool) -> Iterator[Rule]:
    yield from ((name, ()) for name in (*ALLOWED, *(FORKING if may_fork else ())))
    # clone3, whose flags a filter cannot read, stays unknown: the C library then uses clone
    kind = 0 if may_fork else CLONE_THREAD
    yield "clone", (_Comparison(0, MASKED_EQUAL, CLONE_NEW | kind, kind),)
    yield "prlimit64", (_Comparison(0, EQUAL, 0, 0),)  # its own limits, not those of process 1
    yield "socketpair", (_Comparison(0, EQUAL, AF_UNIX, 0),)
    if has_sockets:
        yield from ((name, ()) for name in SOCKETS)
        for family in (AF_INET, AF_INET6):
            kind = _Comparison(1, MASKED_EQUAL, SOCK_KINDS, SOCK_STREAM)
            yield "socket", (_Comparison(0, EQUAL, family, 0), kind)
        for level, option in SOCKET_OPTIONS:
            chosen = () if option is None else (_Comparison(2, EQUAL, option, 0),)
            yield "setsockopt", (_Comparison(1, EQUAL, level, 0), *chosen)
    yield "fcntl", (_Comparison(1, NOT_EQUAL, F_SETPIPE_SZ, 0),)
    yield from (("ioctl", (_Comparison(1, EQUAL, request, 0),)) for request in TERMINAL)


def _checked(result: int, what: str) -> None:
    if result != 0:
        raise OSError(-result, f"libseccomp, {what}: {os.strerror(-result)}")


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    rule = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Comparison)]
    library.seccomp_rule_add_array.argtypes = rule
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library
