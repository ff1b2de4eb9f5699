"""The system calls that a job may make. All others do not exist for it (ENOSYS), those of future kernels included.

Left out on purpose: whatever makes or enters namespaces, mounts, traces, reads other processes, loads code into the
kernel or asks it for work in the background (bpf, io_uring, userfaultfd, perf_event_open, keyctl, ptrace, kexec, ...),
sockets that reach beyond the process, memory that no limit counts (shmget, memfd_create, mq_open; setsockopt and
F_SETPIPE_SZ, which make buffers larger), file handles.
"""

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
getrandom getresgid getresuid getrlimit getrusage getsid gettid getuid kill membarrier pause prctl prlimit64
restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam sched_getscheduler sched_yield
set_tid_address setrlimit setsid sigaltstack sysinfo tgkill tkill uname wait4 waitid
"""
OWN_SOCKETS = "getpeername getsockname getsockopt recvfrom sendto shutdown"  # of socketpair, see seccomp.py
ALLOWED = tuple(f"{FILES} {MEMORY} {WAITING} {TIME} {PROCESS} {OWN_SOCKETS}".split())

BECOMING_NOBODY = ("setgroups", "setresgid", "setresuid", "capget", "capset")
"""What `setpriv` needs where root starts the job; who has no privileges can do nothing with them."""
FORKING = ("fork", "vfork")

TERMINAL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""ioctl: TCGETS (isatty), TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
