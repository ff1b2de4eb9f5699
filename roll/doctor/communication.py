"""Processes that do not reach each other."""

from roll.doctor.row import SHM, KnownError

ROWS = (
    KnownError(
        "NCCL finds no network interface",
        r"Bootstrap : no socket interface found|no NCCL_SOCKET_IFNAME interface found",
        "No interface of this node has that name.",
        "network_interface",
        "Name one that every node has (`ip -br addr`); docs/network.md",
    ),
    KnownError(
        "NCCL gets no shared memory",
        r"NCCL WARN .*(?:posix_fallocate|shm_open).*failed|Error while creating shared memory segment",
        "/dev/shm is full or too small: docker gives 64 MB.",
        "/dev/shm",
        SHM,
    ),
    KnownError(
        "NCCL cannot reach another node",
        r"NCCL WARN .*(?:Connection refused|Connection timed out|No route to host)|ncclRemoteError",
        "The nodes reach each other on another interface, or a firewall blocks them.",
        "network_interface",
        "Name the interface of the cluster's network; system_envs.NCCL_DEBUG: INFO shows which one is used",
    ),
    KnownError(
        "NCCL failed in a call to the system or to CUDA",
        r"unhandled (?:system|cuda) error|ncclUnhandledCudaError|ncclSystemError",
        "NCCL says more with NCCL_DEBUG: often /dev/shm, the network interface, or a GPU that failed.",
        "system_envs.NCCL_DEBUG",
        "Set INFO, run again, and run this on the new log",
    ),
    KnownError(
        "a collective operation took longer than allowed",
        r"Watchdog caught collective operation timeout",
        "One rank waited for others that died, hang, or are still busy: uneven rows, or a slow disk at a checkpoint.",
        "<role>.backend_timeout",
        "See which rank's log stops first and why; raise it (minutes) where ranks are merely slow",
    ),
    KnownError(
        "ranks did not connect in time",
        r"wait timeout after \d+ms|DistStoreError|timed out after \d+ seconds waiting for clients",
        "Not all ranks reached the rendezvous: one failed before it, or cannot connect.",
        "network_interface",
        "Look for another role's or rank's error first; then the interface (docs/network.md)",
        follows=True,
    ),
    KnownError(
        "a connection to another rank broke",
        r"Connection (?:reset|closed) by (?:remote )?peer|socketProgress: Connection closed",
        "The rank on the other side ended. Its own log has the cause.",
        "<logging_dir>/workers",
        "Look for the first error of another rank",
        follows=True,
    ),
    KnownError(
        "a port is taken",
        r"Address already in use|EADDRINUSE|errno: 98\b",
        "Another process listens there: another run, or a process that one left behind.",
        "ss -ltnp",
        "It shows which one. End it, or choose another port where the YAML names one (tracker_kwargs)",
    ),
)
