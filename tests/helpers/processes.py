"""Functions run in N processes joined by gloo, without Ray: what strategy and parity tests need.

    with RankPool(2) as pool:
        sums = pool.run(all_reduced_rank)        # one result per rank: [1, 1]

`fn` is a module-level function; it and its arguments travel by pickle. Inside it torch.distributed is initialised and
RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set. The processes are forked from one server that has
imported torch, transformers, DeepSpeed and the trainers already, so a fresh pool takes .3 s instead of ten seconds for
every rank.
"""

import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from roll.distributed.weights.transport import SHARED_MEMORY_DIRECTORY
from roll.utils.network import free_port

PRELOADED: tuple[str, ...] = (
    "transformers.models.qwen2.modeling_qwen2",
    "peft",
    "roll.distributed.strategy.deepspeed.train",
    "roll.distributed.strategy.fsdp2.train",
    "tests.contract.train_strategy",
)
CALLS_PER_PROCESS = 10  # gloo keeps its threads busy until a process ends, dozens for every layout that Megatron made
CALL_LIMIT_S = 300.0  # start of the processes included, on a machine that is busy with other things
DEVICE_VARIABLE = "ROLL_TEST_DEVICE"  # of a rank; not set: its device is the CPU
GRACE_S = 1.0  # once one rank has failed: how long the others may take to say what they saw


class RankError(AssertionError):
    """A rank raised, died or did not answer in time. The text holds every traceback that arrived."""


class RankPool:
    """`world_size` processes that run one function after the other. After a failure, and after CALLS_PER_PROCESS
    functions, all are replaced by fresh ones."""

    def __init__(self, world_size: int, *, init_process_group: bool = True, gpus: Sequence[str] = ()):
        """`gpus`: one for each rank, which sees no other. There a strategy makes the process group, with NCCL."""
        self.world_size = world_size
        self.init_process_group = init_process_group and not gpus
        self.gpus = gpus
        self.processes: list[BaseProcess] = []
        self.connections: list[Connection] = []
        self.num_calls = 0  # of these processes

    def run(self, fn: Callable[..., Any], *args: Any, timeout_s: float = CALL_LIMIT_S) -> list[Any]:
        """fn(*args) on every rank; the results in rank order."""
        return self.run_each(fn, [args] * self.world_size, timeout_s=timeout_s)

    def run_each(
        self, fn: Callable[..., Any], arguments: list[tuple[Any, ...]], timeout_s: float = CALL_LIMIT_S
    ) -> list[Any]:
        """fn(*arguments[rank]) on every rank; the results in rank order."""
        assert len(arguments) == self.world_size
        if self.num_calls == CALLS_PER_PROCESS:
            self.close()
        if not self.processes:
            self._start()
        self.num_calls += 1
        try:
            for connection, rank_arguments in zip(self.connections, arguments, strict=True):
                with suppress(BrokenPipeError):  # this rank has died: `_gather` says so
                    connection.send_bytes(pickle.dumps((fn, rank_arguments)))
            return self._gather(time.monotonic() + timeout_s, timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill every rank and what it started."""
        for process in self.processes:
            if process.pid is not None:
                with suppress(ProcessLookupError):  # it has not opened its own group yet, or is gone
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
        for process in self.processes:
            process.join()
        for connection in self.connections:
            connection.close()
        self.processes, self.connections, self.num_calls = [], [], 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        # What is preloaded may ask CUDA how many GPUs there are, and CUDA does not survive a fork.
        method = "spawn" if self.gpus else "forkserver"
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(list(PRELOADED))
        port = free_port()
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self.world_size),
                "LOCAL_WORLD_SIZE": str(self.world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            }
            if self.gpus:
                environment |= {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": self.gpus[rank], DEVICE_VARIABLE: "cuda:0"}
            process = context.Process(
                target=_serve, args=(theirs, environment, self.init_process_group), name=f"rank{rank}", daemon=True
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self.connections.append(ours)

    def _gather(self, deadline: float, timeout_s: float) -> list[Any]:
        results: dict[int, Any] = {}
        failures: dict[int, str] = {}
        while len(results) + len(failures) < self.world_size:
            waiting = {
                self.connections[rank]: rank
                for rank in range(self.world_size)
                if rank not in results and rank not in failures
            }
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                for rank in waiting.values():
                    failures[rank] = "no answer after the first failure" if failures else f"no answer in {timeout_s} s"
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting[connection]
                try:
                    succeeded, payload = pickle.loads(connection.recv_bytes())
                except (EOFError, ConnectionResetError):
                    self.processes[rank].join(GRACE_S)
                    succeeded, payload = False, f"died, exit code {self.processes[rank].exitcode}"
                if succeeded:
                    results[rank] = payload
                else:
                    failures[rank] = payload
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if failures:
            raise RankError("\n".join(f"rank {rank}: {text}" for rank, text in failures.items()))
        return [results[rank] for rank in range(self.world_size)]


def shared_segments(pids: Iterable[int | None]) -> list[Path]:
    """The buckets of weights in shared memory that these processes have not removed."""
    return [path for pid in pids for path in SHARED_MEMORY_DIRECTORY.glob(f"roll-{pid}-*")]


def _serve(connection: Connection, environment: dict[str, str], init_process_group: bool) -> None:
    """Life of one rank: answer (True, result) or (False, traceback) to every (function, arguments)."""
    os.setsid()  # so that one kill reaches whatever this rank starts
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    if init_process_group:
        torch.distributed.init_process_group("gloo")
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:  # the test process is gone
            os._exit(0)
        try:
            fn, args = pickle.loads(request)
            answer = pickle.dumps((True, fn(*args)))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        connection.send_bytes(answer)
