"""Weights from ranks of a pool to an engine in the test's own process, over the real sender and the real receiver. What
Ray does in a run (calling a method there, waiting for the answer) a socket does here."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import numpy as np

from roll.configs.strategies.table import load_spec
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.rollout.generate_worker import GenerateWorker
from roll.errors import StrategyError
from tests.helpers.engines import SMALL, role, set_environment
from tests.helpers.processes import RankPool

CHECK = "check"


class Reply:
    """One answer of the other side: (True, value) or (False, error text)."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self._answer: tuple[bool, Any] | None = None

    def result(self, timeout_s: float | None = None) -> list[Any]:
        answer: tuple[bool, Any] = self._answer or self._connection.recv()
        succeeded, value = self._answer = answer
        if not succeeded:
            raise StrategyError(value)
        return [value]

    def raise_failures(self) -> None:
        if self._answer is None and self._connection.poll():
            self.result()


class OneEngine:
    """The receiver at the other end of a socket."""

    def __init__(self, address: str):
        self._connection = Client(address, "AF_UNIX")

    def start(self, method: str, arguments: dict[int, tuple[Any, ...]]) -> Reply:
        self._connection.send((method, arguments[0]))
        return Reply(self._connection)


class NoEngine:
    """What ranks that do not lead may call: nobody answers."""

    def start(self, method: str, arguments: dict[int, tuple[Any, ...]]) -> NoEngine:
        assert method == CHECK
        return self

    def result(self, timeout_s: float | None = None) -> list[Any]:
        return []

    def raise_failures(self) -> None:
        return


class Engine:
    """An engine as a worker of actor_infer has it."""

    def __init__(self, name: str, model_dir: Path, num_ranks: int = 1):
        self.loop = asyncio.new_event_loop()
        set_environment(name, num_ranks)
        settings = role(name, model_dir, num_ranks, SMALL[name])
        self.worker = GenerateWorker(
            Blueprint("actor_infer", 0, 1, 0, 7, "cpu", load_spec(name).classes["generate"], settings)
        )
        self.run(self.worker.setup())
        self.on_call: Callable[[str], None] = lambda method: None

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 300))

    def close(self) -> None:
        self.run(self.worker.shutdown())
        self.loop.run_until_complete(asyncio.sleep(0.1))
        self.loop.close()

    def receive_from(
        self,
        pool: RankPool,
        publish: Callable[..., Any],
        arguments: tuple[Any, ...],
        directory: Path,
        check: Callable[[dict[str, np.ndarray]], None],
    ) -> list[Any]:
        """publish(address, *arguments) on every rank; what the ranks return. `check` is called with what they send
        under CHECK."""
        address = str(directory / "socket")
        with socket.socket(socket.AF_UNIX) as server, ThreadPoolExecutor(1) as thread:
            server.bind(address)
            server.listen(1)
            server.settimeout(0.1)
            ranks = thread.submit(pool.run, publish, address, *arguments)
            connection: Connection | None = None
            while not ranks.done():
                if connection is None:
                    connection = _accepted(server)
                elif connection.poll(0.1):
                    try:
                        method, arguments = connection.recv()
                    except EOFError:  # rank 0 is through
                        break
                    connection.send(self._answer(method, arguments, check))
            return ranks.result()

    def _answer(
        self, method: str, arguments: tuple[Any, ...], check: Callable[[dict[str, np.ndarray]], None]
    ) -> tuple[bool, Any]:
        try:
            if method == CHECK:
                return True, check(*arguments)
            self.on_call(method)
            return True, self.run(getattr(self.worker, method)(*arguments))
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"


def _accepted(server: socket.socket) -> Connection | None:
    try:
        return Connection(server.accept()[0].detach())
    except TimeoutError:
        return None
