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
import torch

from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.infer_worker import InferWorker
from roll.distributed.executor.send_plan import Route, SendPlan
from roll.distributed.executor.weight_sender import WeightSender
from roll.distributed.strategy.table import strategy_class_path
from roll.errors import StrategyError
from tests.helpers.engines import SMALL, role, set_environment
from tests.helpers.processes import RankPool
from tests.parity.megatron.ranks import Run, exported, one_update, trainer

ROUTES: tuple[Route, ...] = ("memory", "broadcast", "file")
BUCKET_BYTES = 50_000  # several buckets, and layers lie across their borders
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


def publish(run: Run, address: str, directory: Path, version: int) -> list[int]:
    """On every rank: for each route one update and its weights to the engine, which must then have them. `version` is
    what the engine has."""
    versions = []
    with trainer(run) as strategy:
        sender = WeightSender(torch.device("cpu"))
        engine = OneEngine(address) if strategy.exports_weights else None
        for new_version, route in enumerate(ROUTES, version + 1):
            one_update(strategy, run)
            buckets = strategy.export_weights(BUCKET_BYTES)
            if engine is None:
                assert not any(buckets)
            else:
                plan = SendPlan((route,), (1,), directory=directory)
                versions += sender.send(buckets, engine, plan, new_version)
            weights = exported(strategy)
            if engine is not None:
                engine.start(CHECK, {0: (weights,)}).result()
        sender.close()
    return versions


class Engine:
    """An engine as a worker of actor_infer has it."""

    def __init__(self, name: str, model_dir: Path):
        self.loop = asyncio.new_event_loop()
        set_environment(name)
        settings = role(name, model_dir, 1, SMALL[name])
        self.worker = InferWorker(
            Blueprint("actor_infer", 0, 1, 0, 7, "cpu", strategy_class_path(name, "generate"), settings)
        )
        self.run(self.worker.setup())

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 300))

    def close(self) -> None:
        self.run(self.worker.shutdown())
        self.loop.run_until_complete(asyncio.sleep(0.1))
        self.loop.close()

    def receive_from(
        self, pool: RankPool, run: Run, directory: Path, check: Callable[[dict[str, np.ndarray]], None]
    ) -> list[int]:
        """The versions that the engine reported. `check` is called with the trainer's weights after every route."""
        version = self.worker.strategy.policy_version
        address = str(directory / "socket")
        with socket.socket(socket.AF_UNIX) as server, ThreadPoolExecutor(1) as thread:
            server.bind(address)
            server.listen(1)
            server.settimeout(0.1)
            ranks = thread.submit(pool.run, publish, run, address, directory, version)
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
            return ranks.result()[0]

    def _answer(
        self, method: str, arguments: tuple[Any, ...], check: Callable[[dict[str, np.ndarray]], None]
    ) -> tuple[bool, Any]:
        try:
            if method == CHECK:
                return True, check(*arguments)
            return True, self.run(getattr(self.worker, method)(*arguments))
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"


def _accepted(server: socket.socket) -> Connection | None:
    try:
        return Connection(server.accept()[0].detach())
    except TimeoutError:
        return None
