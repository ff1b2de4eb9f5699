"""`roll doctor --log`: lines as logs have them, and what is made of a run's directory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from roll.commands.table import main
from roll.doctor.logs import KNOWN_ERRORS, log_files, log_findings
from roll.doctor.machine import Finding
from roll.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[3]
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.66 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 3.19 GiB is free. Process 1234 has 75.91 GiB memory in use."
)
WORKER = '  File "/opt/roll/distributed/executor/worker.py", line 190, in '

LINES = {
    "out of GPU memory at the first update": [
        '  File "/opt/torch/optim/adamw.py", line 162, in _init_group',
        '    state["exp_avg"] = torch.zeros_like(p)',
        OOM,
    ],
    "out of GPU memory while a role starts": [f"E roll.commands.run: actor_train rank 3 failed in setup: {OOM}"],
    "out of GPU memory while weights are sent": [f"{WORKER}publish_weights", "    buffer = torch.empty(size)", OOM],
    "out of GPU memory when a role gets its GPU back": [f"{WORKER}load_states", "    self._strategy.load(states)", OOM],
    "out of GPU memory in training": [f"{WORKER}train", "    loss.backward()", OOM],
    "out of GPU memory in scoring": [f"E roll.commands.run: reference rank 0 failed in score: OutOfMemoryError: {OOM}"],
    "out of GPU memory while sampling": ['  File "/opt/vllm/v1/worker/gpu_model_runner.py", line 2, in execute', OOM],
    "out of GPU memory": ["RuntimeError: CUDA error: out of memory"],
    "vLLM has no room for a key-value cache": [
        "(EngineCore_DP0 pid=223840) ERROR 10-25 13:08:43 [core.py:708] ValueError: No available memory for the cache "
        "blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
    ],
    "vLLM's key-value cache is smaller than one sequence": [
        "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (9.53 GiB). Based on the available memory, ..."
    ],
    "vLLM: sequences are longer than the model's positions": [
        "ValueError: User-specified max_model_len (40960) is greater than the derived max_model_len "
        "(max_position_embeddings=32768 or model_max_length=None in model's config.json)."
    ],
    "vLLM's GPU is in use": [
        "ValueError: Free memory on device cuda:0 (12.4/79.1 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    ],
    "heads do not divide among the GPUs of an engine": [
        "Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8)."
    ],
    "SGLang has no room for a key-value cache": [
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        "mem_fraction_static=0.2"
    ],
    "SGLang cannot capture its CUDA graphs": [
        "Exception: Capture cuda graph failed: an error occurred while the graph was being captured"
    ],
    "an engine did not start": [
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    ],
    "NCCL finds no network interface": [
        "node1:812:812 [0] misc/socket.cc:551 NCCL WARN Bootstrap : no socket interface found"
    ],
    "NCCL gets no shared memory": [
        "gpu2-ru7:2143:2561 [1] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device"
    ],
    "NCCL cannot reach another node": [
        "node1:18553:18611 [0] include/socket.h:360 NCCL WARN Call to connect failed : Connection timed out"
    ],
    "NCCL failed in a call to the system or to CUDA": [
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"
    ],
    "a collective operation took longer than allowed": [
        "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) "
        "ran for 600060 milliseconds before timing out."
    ],
    "ranks did not connect in time": [
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined."
    ],
    "a connection to another rank broke": [
        "RuntimeError: [../third_party/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:45120"
    ],
    "a port is taken": [
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    ],
    "a worker died, and Ray does not know why": [
        "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some "
        "potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage."
    ],
    "a process was killed, out of memory": [
        "(raylet) node_manager.cc:3064: 12 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers "
        "crashed due to other reasons at node (ID: b8aad7ac, IP: 172.31.105.218) over the last time period."
    ],
    "shared memory is full": ["ERROR: Unexpected bus error encountered in worker. insufficient shared memory (shm)."],
    "the disk is full": ["OSError: [Errno 28] No space left on device: '/data/output/run/checkpoints/x.safetensors'"],
    "too many open files": ["OSError: [Errno 24] Too many open files: '/proc/1/stat'"],
    "too many threads": ["RuntimeError: can't start new thread"],
    "the driver is older than CUDA": [
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver"
    ],
    "a kernel is not built for this GPU": [
        "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    ],
    "a GPU failed": ["NVRM: Xid (PCI:0000:1e:00): 79, pid=2211, GPU has fallen off the bus."],
    "an index outside its table, on the GPU": ["RuntimeError: CUDA error: device-side assert triggered"],
    "DeepSpeed: batch sizes contradict each other": [
        "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
        "gradient_acc_step * world_size 256 != 2 * 18 * 7"
    ],
    "DeepSpeed: fp16 overflows at every step": [
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
    ],
    "DeepSpeed cannot build an operator": ["RuntimeError: Error building extension 'cpu_adam'"],
    "Megatron: ranks do not divide among the parallel sizes": ["RuntimeError: world_size (6) is not divisible by 4"],
    "Megatron: a size of the model does not divide": ["AssertionError: 14 is not divisible by 4"],
    "the hub wants a login": [
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: "
        "https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json"
    ],
    "the hub cannot be reached": [
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and "
        "outgoing traffic has been disabled."
    ],
    "a model's files are incomplete": [
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata"
    ],
    "a package is missing": ["ModuleNotFoundError: No module named 'deepspeed'"],
    "a compiled package does not fit torch": [
        "ImportError: /opt/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2E"
    ],
    "Ray's token is missing or wrong": ["ray.exceptions.AuthenticationError: Token authentication is enabled"],
}
MORE = {  # other forms of the same
    "a process was killed, out of memory": [
        ["[Mon Nov 23] Out of memory: Killed process 3121 (python3) total-vm:98123456kB"],
        ["E roll: actor_train-0 on this host died (pid 812, signal 9)"],
        ["Launch of worker failed with exit code: -9"],
    ],
    "shared memory is full": [
        ["OSError: [Errno 28] No space left on device: '/psm_8c21a1f3'"],
        ["Fatal Python error: Bus error"],
    ],
    "vLLM's key-value cache is smaller than one sequence": [
        ["max seq len (4096) is larger than the maximum number of tokens that can be stored in KV cache (3664)"]
    ],
    "DeepSpeed cannot build an operator": [
        ["MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)"]
    ],
}


def found_in(folder: Path, *lines: str) -> list[Finding]:
    log = folder / "driver.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    return list(log_findings(log_files(str(log))))


def names(found: Iterable[Finding]) -> list[str]:
    return [finding.what.partition(" (driver.log")[0] for finding in found]


def test_every_known_error_has_a_line_here() -> None:
    assert {row.name for row in KNOWN_ERRORS} == {*LINES}


@pytest.mark.parametrize(
    ("name", "lines"),
    [*LINES.items(), *((name, lines) for name, forms in MORE.items() for lines in forms)],
)
def test_a_line_is_known_for_what_it_is_and_for_nothing_else(name: str, lines: list[str], tmp_path: Path) -> None:
    found = found_in(tmp_path, "12:00:01 I roll: step 3", *lines, "12:00:02 I roll: the run ends")
    assert names(found) == [name]
    assert found[0].where and found[0].fix and found[0].observed


def test_the_keys_that_fixes_name_exist() -> None:
    """Those of the configuration; what stands below strategy_config is the engine's or the trainer's own."""
    reference = "".join(page.read_text() for page in (REPOSITORY / "docs" / "reference").glob("*.md"))
    parts = [part.strip() for row in KNOWN_ERRORS for part in row.where.split(",")]
    keys = {part.rpartition(".")[2] for part in parts if re.fullmatch(r"(<role>\.|actor_train\.)?[a-z_.]+", part)}
    own = {part.rpartition(".")[2] for part in parts if "strategy_config" in part} | {"pipeline_model_parallel_size"}
    assert len(keys - own) > 10, "the search itself finds keys"
    assert [key for key in sorted(keys - own) if f"`{key}`" not in reference] == []


def test_a_run_is_read_whole_and_causes_stand_before_what_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = tmp_path / "logs" / "workers"
    workers.mkdir(parents=True)
    (tmp_path / "logs" / "driver.log").write_text(LINES["a connection to another rank broke"][0] + "\n")
    (workers / "actor_train-1.err").write_text("\n".join(["a"] * 4 + LINES["out of GPU memory in training"] * 3))
    (workers / "actor_train-0.err").write_bytes(b"\xff\xfe nothing of use\n")
    assert main(["doctor", "--log", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    shown = shown[shown.index("Errors in logs") :].splitlines()
    assert shown[1].startswith("  problem  out of GPU memory in training (actor_train-1.err:7, 3 times). Activations")
    assert shown[2].strip().startswith("> torch.OutOfMemoryError: CUDA out of memory.") and shown[2].endswith("...")
    assert shown[3].strip().startswith("actor_train.training_args.per_device_train_batch_size, max_tokens_per_micro")
    assert shown[4].startswith("  hint     a connection to another rank broke (driver.log:1).")


def test_what_is_not_known_is_shown_as_it_is(tmp_path: Path) -> None:
    found = found_in(tmp_path, "fine", "roll.errors.RewardError: rewards.math: nobody foresaw https://me:secret@host/x")
    assert [finding.level for finding in found] == ["ok", "hint"]
    assert found[0].what == f"none of {len(KNOWN_ERRORS)} known errors is in 1 file"
    assert "nobody foresaw https://***@host/x" in found[1].observed
    assert [finding.level for finding in found_in(tmp_path, "all is well")] == ["ok"]


def test_a_place_without_logs_is_bad_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--log", str(tmp_path / "none")]) == 2
    assert "does not exist. Name a log file, or the output_dir" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="has no logs, nor have its folders"):
        log_files(str(tmp_path))
