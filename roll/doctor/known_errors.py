"""A log file, or what a run's directory has of logs, held against the errors that are known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from roll.doctor.machine import Finding
from roll.errors import ConfigError
from roll.utils.files import path_info
from roll.utils.secrets import mask

# One error that others had before.

ENGINE = "actor_infer.strategy_args.strategy_config"
TRAINER = "actor_train.strategy_args.strategy_config"
SHM = "docker --shm-size=16g, or an emptyDir with medium: Memory"


@dataclass(frozen=True)
class KnownError:
    """`pattern`: a regular expression of one line. `context`: one that must be found in that line or those around it.
    `where`: the YAML key, variable or command that `fix` is about. `follows`: it tells of what another process met."""

    name: str
    pattern: str
    cause: str
    where: str
    fix: str
    context: str = ""
    follows: bool = False


# Processes that do not reach each other.

COMMUNICATION = (
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


# Engines that do not start.

ENGINES = (
    KnownError(
        "vLLM has no room for a key-value cache",
        r"No available memory for the cache blocks",
        "Weights and activations fill the engine's share of the GPU.",
        f"{ENGINE}.gpu_memory_utilization",
        "Raise it, give the engine more GPUs (tensor_parallel_size), or end other processes on the GPU",
    ),
    KnownError(
        "vLLM's key-value cache is smaller than one sequence",
        r"KV cache is needed, which is larger than the available KV cache|maximum number of tokens that can be stored",
        "One sequence of max_model_len tokens needs more cache than the GPU has room for.",
        f"sequence_length, {ENGINE}.max_model_len",
        "Shorter sequences (prompt_length, response_length), a larger gpu_memory_utilization, more GPUs per engine",
    ),
    KnownError(
        "vLLM: sequences are longer than the model's positions",
        r"User-specified max_model_len \(\d+\) is greater than the derived max_model_len",
        "config.json of the model says how many positions it was trained with.",
        f"sequence_length, {ENGINE}.max_model_len",
        "Lower prompt_length or response_length; rope_scaling in model_config_kwargs where the model is meant for it",
    ),
    KnownError(
        "vLLM's GPU is in use",
        r"Free memory on device .* on startup is less than|is less than desired GPU memory utilization",
        "Another role, another run or a process left behind holds memory on this GPU.",
        f"{ENGINE}.gpu_memory_utilization",
        "End the processes that `nvidia-smi` lists, lower the share, or give the engine devices of its own",
    ),
    KnownError(
        "heads do not divide among the GPUs of an engine",
        r"attention heads \(\d+\) must be divisible by tensor parallel size",
        "Tensor parallelism needs whole heads on each GPU.",
        f"{ENGINE}.tensor_parallel_size",
        "Take a divisor of the number of heads, also in num_gpus_per_worker",
    ),
    KnownError(
        "SGLang has no room for a key-value cache",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "Weights take all of the static share of the GPU.",
        f"{ENGINE}.mem_fraction_static",
        "Raise it, or more GPUs per engine (tp_size)",
    ),
    KnownError(
        "SGLang cannot capture its CUDA graphs",
        r"Capture cuda graph failed",
        "Graphs are captured after the cache is allocated, and the remaining memory is too small for them.",
        f"{ENGINE}.mem_fraction_static",
        "Lower it, set cuda_graph_max_bs_decode smaller, or disable_cuda_graph: true",
    ),
    KnownError(
        "an engine did not start",
        r"Engine core initialization failed|Rank \d+ scheduler died",
        "A process of the engine ended. The cause is above this line, or in the file of the engine's worker.",
        "<logging_dir>/workers",
        "Look for the first error of actor_infer there",
        follows=True,
    ),
)


# Memory of a GPU, by what was going on; the row without `context` is the last.

_OOM = r"CUDA out of memory|CUDA error: out of memory|torch\.(?:cuda\.)?OutOfMemoryError"

GPU_MEMORY = (
    KnownError(
        "out of GPU memory at the first update",
        _OOM,
        "The optimizer's states are allocated at the first step (twice the weights in fp32), and do not fit.",
        f"{TRAINER}.zero_optimization",
        "A higher stage, offload_optimizer (FSDP2: optimizer_offload), more devices, or LoRA (docs/lora.md)",
        context=r"_init_group|exp_avg|optimizer\.step\(|_take_model_step",
    ),
    KnownError(
        "out of GPU memory while a role starts",
        _OOM,
        "Its weights do not fit beside those of other roles, or another run, on the GPU.",
        "<role>.device_mapping",
        "`nvidia-smi` shows the processes; more devices for the role, or a strategy that divides weights",
        context=r"failed in setup|\bin setup\b",
    ),
    KnownError(
        "out of GPU memory while weights are sent",
        _OOM,
        "Two buckets of weights have to fit beside what trainer and engine hold.",
        "model_update_buffer_size_mb",
        f"Halve it, or give the engine a smaller share: {ENGINE}.gpu_memory_utilization or mem_fraction_static",
        context=r"publish_weights|receive_weights",
    ),
    KnownError(
        "out of GPU memory when a role gets its GPU back",
        _OOM,
        "Another role left memory on a shared GPU that this role needs.",
        f"{ENGINE}.gpu_memory_utilization",
        "A smaller share for the engine (sglang: mem_fraction_static), or devices of its own in device_mapping",
        context=r"load_states|wake_up|resume_memory_occupation",
    ),
    KnownError(
        "out of GPU memory in training",
        _OOM,
        "Activations and logits of a micro batch do not fit beside weights, gradients and optimizer.",
        "actor_train.training_args.per_device_train_batch_size, max_tokens_per_microbatch_in_train",
        "Fewer rows or tokens in a micro batch, disable_gradient_checkpointing: false, ulysses_size above 1; `roll "
        "plan` shows what the rest takes",
        context=r"failed in train\b|\bin train\b|\.backward\(|forward_backward",
    ),
    KnownError(
        "out of GPU memory in scoring",
        _OOM,
        "A pass without gradient keeps the logits of all its rows.",
        "<role>.infer_batch_size, <role>.max_tokens_per_microbatch_in_infer",
        "A smaller one for the role that the line names",
        context=r"failed in (?:score|teach|compute_t)|\bin (?:score|teach|compute_teacher_targets|score_rows)\b",
    ),
    KnownError(
        "out of GPU memory while sampling",
        _OOM,
        "The engine's share leaves too little for activations and graphs.",
        f"{ENGINE}.gpu_memory_utilization, max_running_requests",
        "Lower one of them (sglang: mem_fraction_static), or set enforce_eager: true",
        context=r"generate|vllm|sglang|actor_infer",
    ),
    KnownError(
        "out of GPU memory",
        _OOM,
        "The allocation was larger than the free memory; other processes on the GPU count too.",
        "roll plan CONFIG.yaml gpu_memory_gb=...",
        "It shows which role needs what, phase by phase, and what makes it smaller",
    ),
)


# Memory, disks and limits of the host; drivers and GPUs.

HOST = (
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
        context=r"/dev/shm|shared memory|psm_|plasma",
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


# Trainers, the hub, packages.

SOFTWARE = (
    # trainers
    KnownError(
        "DeepSpeed: batch sizes contradict each other",
        r"Check batch related parameters\. train_batch_size is not equal",
        "The sizes of a batch are set by the run from its own keys.",
        f"{TRAINER}.train_batch_size",
        "Remove it and similar keys; the rows of an update follow from training_args",
    ),
    KnownError(
        "DeepSpeed: fp16 overflows at every step",
        r"Current loss scale already at minimum",
        "Gradients are infinite or NaN in fp16, whatever the scale.",
        "actor_train.model_args.dtype",
        "Use bf16; else look at the loss and the data of the first steps",
    ),
    KnownError(
        "DeepSpeed cannot build an operator",
        r"CUDA_HOME does not exist, unable to compile|Error building extension|has no attribute 'ds_opt_adam'",
        "CPU Adam and others are compiled when first used, and the compiler of CUDA is missing or of another version.",
        "CUDA_HOME",
        "Install the CUDA toolkit of torch's version, and ninja; or do without offload_optimizer",
    ),
    KnownError(
        "Megatron: ranks do not divide among the parallel sizes",
        r"world_size \(\d+\) is not divisible by",
        "Tensor, pipeline, context and expert sizes together must divide the ranks of the role.",
        f"{TRAINER}.tensor_model_parallel_size",
        "Change the sizes, or the number of devices in device_mapping",
    ),
    KnownError(
        "Megatron: a size of the model does not divide",
        r"AssertionError: \d+ is not divisible by \d+|must be divisible by ?the (?:middle )?pipeline",
        "Heads, widths, vocabulary or layers do not divide by a parallel size.",
        f"{TRAINER}.tensor_model_parallel_size, pipeline_model_parallel_size",
        "Take divisors of the numbers in the model's config.json",
    ),
    # the hub
    KnownError(
        "the hub wants a login",
        r"401 Client Error|GatedRepoError|Cannot access gated repo|Invalid credentials in Authorization header",
        "The model or data set is gated or private, or the token is wrong.",
        "HF_TOKEN",
        "Accept its terms on the hub, then `hf auth login`, or system_envs.HF_TOKEN; a local directory needs neither",
    ),
    KnownError(
        "the hub cannot be reached",
        r"OfflineModeIsEnabled|outgoing traffic has been disabled|We couldn't connect to 'https?://",
        "This machine is offline, or set to be, and its cache lacks the files.",
        "pretrain",
        "Download it elsewhere (`hf download`) and name the directory; unset HF_HUB_OFFLINE where there is a network",
    ),
    KnownError(
        "a model's files are incomplete",
        r"does not appear to have a file named|SafetensorError|Error while deserializing header",
        "A download was interrupted, or the directory is not a model's.",
        "pretrain",
        "Compare with the hub's list of files; `hf download` again",
    ),
    # Python
    KnownError(
        "a package is missing",
        r"ModuleNotFoundError: No module named|FlashAttention\d? has been toggled on, but it cannot be used",
        "It belongs to an extra that is not installed, or is beside a YAML in another folder.",
        'pip install -e ".[...]"',
        "`roll doctor CONFIG.yaml` names the extra (deepspeed, megatron, vllm, sglang, flash-attn ...)",
    ),
    KnownError(
        "a compiled package does not fit torch",
        r"ImportError: .*undefined symbol|GLIBCXX_[\d.]+' not found",
        "It was built against another torch or C++ library than are installed.",
        "requirements/",
        "Install the lock's versions with --no-deps; build it anew where it is your own",
    ),
    KnownError(
        "Ray's token is missing or wrong",
        r"InvalidAuthToken|ray\.exceptions\.AuthenticationError",
        "The cluster at RAY_ADDRESS requires a token.",
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_MODE=token and the cluster's token; docs/network.md",
    ),
)


# All known errors. A new one is a row in the tuple of its subject, and a line in the test.

KNOWN_ERRORS = (*GPU_MEMORY, *ENGINES, *COMMUNICATION, *HOST, *SOFTWARE)
"""The first row that fits a line is the one that is told."""


_MOST_BYTES = 20_000_000  # of the end of a file
_BEFORE, _AFTER = 60, 3  # lines around one that belong to it: a traceback ends with its error
_MOST_SHOWN = 160
_LAST = 3
_FOLDERS = (".", "workers", "logs", "logs/workers")
_ENDINGS = (".log", ".out", ".err", ".txt")
_ERROR_LINE = re.compile(r"\b\w*(?:Error|Exception|Died)\b: \S")
_ANY = re.compile("|".join(f"(?:{row.pattern})" for row in KNOWN_ERRORS))
_ROWS = [(row, re.compile(row.pattern), re.compile(row.context)) for row in KNOWN_ERRORS]


@dataclass
class Occurrence:
    """A known error that was found: its first place, and how often it occurs."""

    row: KnownError
    place: str
    line: str
    count: int = 0


def log_files(path: str) -> list[Path]:
    """The file, or the logs of a run's directory. Raises ConfigError if there is none."""
    status = path_info(path)
    if status.is_file:
        return [status.path]
    if not status.is_directory:
        raise ConfigError(f"--log: {status.why}. Name a log file, or the output_dir or logging_dir of a run.")
    files = [
        file
        for folder in _FOLDERS
        if (status.path / folder).is_dir()
        for file in sorted((status.path / folder).iterdir())
        if file.suffix in _ENDINGS and file.is_file()
    ]
    if not files:
        raise ConfigError(f"--log: {status.path} has no logs, nor have its folders logs and workers. Name a log file.")
    return files


def log_findings(files: Sequence[Path]) -> Iterator[Finding]:
    """Yield known errors that occur in the files, causes before their consequences; the last errors if none is
    known."""
    hits: dict[str, Occurrence] = {}
    last: list[str] = []
    for file in files:
        last += _read(file, hits)
    for hit in sorted(hits.values(), key=lambda each: each.row.follows):
        row, times = hit.row, f", {hit.count} times" if hit.count > 1 else ""
        what = f"{row.name} ({hit.place}{times}). {row.cause}"
        yield Finding("hint" if row.follows else "problem", what, row.where, row.fix, hit.line)
    if not hits:
        count = f"{len(files)} file{'s' if len(files) > 1 else ''}"
        yield Finding("ok", f"none of {len(KNOWN_ERRORS)} known errors is in {count}")
        yield from (Finding("hint", "an error that is not known", observed=line) for line in last[-_LAST:])


def _read(file: Path, hits: dict[str, Occurrence]) -> list[str]:
    """Adds to `observed`; returns the lines that look like errors, the last ones."""
    lines = _text(file).splitlines()
    errors: list[str] = []
    for number, line in enumerate(lines):
        if _ERROR_LINE.search(line):
            errors.append(f"{file.name}: {_shown(line)}")
        if _ANY.search(line) is None:
            continue
        around = "\n".join(lines[max(number - _BEFORE, 0) : number + _AFTER + 1])
        row = next((row for row, pattern, near in _ROWS if pattern.search(line) and near.search(around)), None)
        if row is not None:
            hit = hits.setdefault(row.name, Occurrence(row, f"{file.name}:{number + 1}", _shown(line)))
            hit.count += 1
    return errors[-_LAST:]


def _text(file: Path) -> str:
    with file.open("rb") as stream:
        stream.seek(max(file.stat().st_size - _MOST_BYTES, 0))
        return stream.read().decode("utf-8", "replace")


def _shown(line: str) -> str:
    text = mask(line.strip())
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
