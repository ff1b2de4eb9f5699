"""Memory, disks and limits of the host; drivers and GPUs."""

from roll.doctor.row import SHM, KnownError

ROWS = (
    # the host
    KnownError(
        "a worker died, and Ray does not know why",
        r"There are some potential root causes|Worker unexpectedly exits with a connection error",
        "It was killed from outside (mostly by the kernel, out of memory), or crashed in native code.",
        "<logging_dir>/workers",
        "Its last output is there; `dmesg | grep -i oom` shows whether the kernel killed it",
    ),
    KnownError(
        "a process was killed, out of memory",
        r"Out of memory: Killed process|oom-kill|killed due to (?:memory pressure|the node running low on memory)"
        r"|\(OOM\)|exit(?:ed with)? ?code:? -9\b|exitcode:? -9\b|signal 9\b|SIGKILL",
        "The host, or the container's limit, was out of memory, and the kernel or Ray killed a process.",
        "host_memory_gb",
        "`dmesg | grep -i oom` confirms it, and `roll plan` checks it; use less offloading, fewer workers (world_size)",
    ),
    KnownError(
        "shared memory is full",
        r"Bus error|SIGBUS|signal 7\b|insufficient shared memory",
        "A process wrote to /dev/shm, which is full.",
        "/dev/shm",
        f"{SHM}; remove files of ended runs there",
    ),
    KnownError(
        "shared memory is full",
        r"No space left on device",
        "Ray's objects and buckets of weights lie in /dev/shm.",
        "/dev/shm",
        f"{SHM}; remove files of ended runs there",
        near=r"/dev/shm|shared memory|psm_|plasma",
    ),
    KnownError(
        "the disk is full",
        r"No space left on device|Disk quota exceeded|no space left in",
        "Checkpoints, Ray's files in TMPDIR or the hub's cache filled it.",
        "max_ckpt_to_keep",
        "Keep fewer checkpoints, save less often (save_steps), or another output_dir; `df -h` shows which disk",
    ),
    KnownError(
        "too many open files",
        r"Too many open files|\[Errno 24\]",
        "Each worker, engine and connection holds files; the limit is that of the shell that started the run.",
        "ulimit -n",
        "ulimit -n 65536 before the run; in a container --ulimit nofile=65536:65536",
    ),
    KnownError(
        "too many threads",
        r"can't start new thread|pthread_create failed|Resource temporarily unavailable",
        "The limit of processes and threads of this user or container is reached.",
        "ulimit -u",
        "ulimit -u 65536, `pids` of the container; fewer threads: system_envs.OMP_NUM_THREADS",
    ),
    # drivers and devices
    KnownError(
        "the driver is older than CUDA",
        r"CUDA driver version is insufficient|forward compatibility was attempted|driver on your system is too old",
        "torch is built for a newer CUDA than the driver knows.",
        "nvidia-smi",
        "Install a newer driver (580 for CUDA 13), or a torch for an older CUDA; `roll doctor` compares them",
    ),
    KnownError(
        "a kernel is not built for this GPU",
        r"no kernel image is available for execution",
        "torch or an extension is built for other GPUs than this one.",
        "requirements/cuda-vllm.txt",
        "Install the versions of the lock; an extension of your own with TORCH_CUDA_ARCH_LIST",
    ),
    KnownError(
        "a GPU failed",
        r"uncorrectable ECC|NVRM: Xid|CUDA error: (?:an illegal memory access|unspecified launch failure)"
        r"|fallen off the bus",
        "Broken hardware, or a kernel that wrote to a wrong address.",
        "nvidia-smi -q -d ECC",
        "`dmesg | grep -i xid`; if it is always the same GPU, leave it out of device_mapping",
    ),
    KnownError(
        "an index outside its table, on the GPU",
        r"device-side assert triggered",
        "Mostly a token id beyond the embedding, from a tokenizer that is not the model's.",
        "<role>.model_args.tokenizer_path",
        "Compare vocabulary and vocab_size; system_envs.CUDA_LAUNCH_BLOCKING: 1 names the place",
    ),
)
