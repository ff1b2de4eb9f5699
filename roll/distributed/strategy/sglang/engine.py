"""One running SGLang engine: its processes, calls to all its schedulers, and the notice of its death."""

import asyncio
import atexit
import contextlib
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import zmq
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.io_struct import RpcReqInput, RpcReqOutput, sock_recv, sock_send
from sglang.srt.managers.load_snapshot import shm_path_for
from sglang.srt.managers.tokenizer_manager import TokenizerManager

from roll.distributed.strategy.sglang.args import SOCKETS_VARIABLE
from roll.distributed.strategy.sglang.scheduler import OWNER_VARIABLE, run_detokenizer, run_scheduler
from roll.errors import EngineDied, StrategyError
from roll.utils.background import start

T = TypeVar("T")
_POLL_MS = 100
_SIGNALS = (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT)


class _Engine(Engine):
    run_scheduler_process_func = staticmethod(run_scheduler)
    run_detokenizer_process_func = staticmethod(run_detokenizer)


class EngineProcesses:
    """Starts the engine in processes of its own, watched from this event loop."""

    def __init__(self, arguments: dict[str, Any]):
        """Blocks until the model is loaded. Raises what SGLang raises; nothing is left running then."""
        self._loop = asyncio.get_running_loop()
        self._death: asyncio.Future[str] = self._loop.create_future()
        self._calls = ThreadPoolExecutor(1, "sglang calls")  # one at a time, always from the same thread
        self._is_closed = threading.Event()
        before = multiprocessing.active_children()
        os.environ[OWNER_VARIABLE] = str(os.getpid())
        try:
            with _process_kept(), _sockets_in(os.environ.get(SOCKETS_VARIABLE)):
                self._engine = _Engine(**arguments)
                self.tokenizer_manager.auto_create_handle_loop()
        except BaseException:
            _kill([process for process in multiprocessing.active_children() if process not in before])
            raise
        finally:
            del os.environ[OWNER_VARIABLE]
        self._processes = [process for process in multiprocessing.active_children() if process not in before]
        atexit.unregister(self._engine.shutdown)  # it kills every child of this process, the engine's or not
        watchdog = self.tokenizer_manager._subprocess_watchdog  # it would end this process with the engine's
        if watchdog is not None:
            watchdog.stop()
        for process in self._processes:
            self._loop.add_reader(process.sentinel, self._died, process)

    @property
    def tokenizer_manager(self) -> TokenizerManager:
        manager = self._engine.tokenizer_manager
        assert manager is not None, "an engine on the first node has one"
        return manager

    @property
    def _socket(self) -> zmq.Socket[bytes]:
        socket = self._engine.send_to_rpc
        assert isinstance(socket, zmq.Socket), "an engine on the first node has one"
        return socket

    @property
    def num_cache_tokens(self) -> int:
        return int(self._engine._scheduler_init_result.scheduler_infos[0]["max_total_num_tokens"])

    async def call(self, method: str, **parameters: str | int) -> None:
        """Runs a method of RollScheduler on every rank. StrategyError if it fails on one."""
        work = self._loop.run_in_executor(self._calls, self._exchange, method, parameters)
        await self.while_alive(_result_of(work))

    async def while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; EngineDied as soon as a process of the engine has ended."""
        task = start(work)
        try:
            await asyncio.wait((task, self._death), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if self._death.done() and not (task.done() and not task.cancelled() and task.exception() is None):
            task.cancel()
            raise EngineDied(self._death.result())
        return task.result()

    def check(self) -> None:
        """Raises EngineDied if a process of the engine has ended."""
        if self._death.done():
            raise EngineDied(self._death.result())

    def close(self) -> None:
        """Ends the engine's processes; calls still open fail."""
        self._is_closed.set()
        if self._loop.is_closed():
            self._close_sockets()
        else:
            for process in self._processes:
                self._loop.remove_reader(process.sentinel)
            for task in self.tokenizer_manager.asyncio_tasks:
                self._loop.call_soon_threadsafe(task.cancel)
            self._loop.call_soon_threadsafe(self._report_death, "sglang was shut down")
            self._loop.call_soon_threadsafe(self._close_sockets)
        _kill(self._processes)
        self._calls.shutdown(wait=True)
        self._socket.close(linger=0)
        Path(shm_path_for(self._engine.port_args.instance_id)).unlink(missing_ok=True)
        for name in (getattr(self._engine.port_args, field) for field in vars(self._engine.port_args)):
            if isinstance(name, str) and name.startswith("ipc://"):
                with contextlib.suppress(OSError):
                    os.unlink(name.removeprefix("ipc://"))

    def _close_sockets(self) -> None:
        """Closes the sockets in the thread of the loop, and drops what the engine never read. Garbage collection could
        begin with their context, which would wait for them forever."""
        for socket in (self.tokenizer_manager.recv_from_detokenizer, self.tokenizer_manager.send_to_scheduler):
            assert isinstance(socket, zmq.Socket)
            socket.close(linger=0)

    def _exchange(self, method: str, parameters: dict[str, Any]) -> None:
        self._wait_for(zmq.POLLOUT)  # a send would block for ever once the other end is gone
        sock_send(self._socket, RpcReqInput(method=method, parameters=parameters))
        self._wait_for(zmq.POLLIN)
        reply = sock_recv(self._socket)
        assert isinstance(reply, RpcReqOutput)
        if not reply.success:
            raise StrategyError(f"sglang: {reply.message}")

    def _wait_for(self, event: int) -> None:
        """Returns when the socket is ready. StrategyError once the engine is dead or closed."""
        while not self._socket.poll(_POLL_MS, event):
            if self._is_closed.is_set():
                raise StrategyError("sglang was shut down")

    def _died(self, process: BaseProcess) -> None:
        for other in self._processes:
            self._loop.remove_reader(other.sentinel)
        process.join(0)
        self._is_closed.set()
        self._report_death(f"sglang's process {process.pid} died (exit code {process.exitcode}); its log says why")

    def _report_death(self, text: str) -> None:
        if not self._death.done():
            self._death.set_result(text)


async def _result_of(work: asyncio.Future[T]) -> T:
    return await work


def _kill(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join(5)


@contextmanager
def _sockets_in(directory: str | None) -> Iterator[None]:
    """SGLang finds names for its sockets among the temporary files."""
    previous, tempfile.tempdir = tempfile.tempdir, directory or tempfile.tempdir
    try:
        yield
    finally:
        tempfile.tempdir = previous


@contextmanager
def _process_kept() -> Iterator[None]:
    """SGLang takes over the root logger, the signals of a main thread, the event loop policy and the way processes
    start."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    logger.handlers[:] = []  # it would close them
    in_main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    policy = asyncio.get_event_loop_policy()
    start_method = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        asyncio.set_event_loop_policy(policy)
        multiprocessing.set_start_method(start_method, force=True)
        if in_main:
            loop = asyncio.get_running_loop()
            for number, handler in previous.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)
