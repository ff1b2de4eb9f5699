"""A broadcast group that is joined by some only."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from roll.distributed.executor.weights.sender import BroadcastRouteSender, EngineRoute, SendPlan
from roll.distributed.weights.broadcast_group import BroadcastGroup
from roll.distributed.weights.bucket import GroupSpec
from roll.distributed.weights.transport import WeightReceiver
from roll.errors import StrategyError

CPU = torch.device("cpu")
READERS = [(0, 0), (1, 0)]
PLAN = SendPlan((EngineRoute("broadcast", (0,)),) * 2)
LONGEST_S = 60  # far below the time limit of a group


class Joins:
    """Calls under way, by engine."""

    def __init__(self, calls: dict[int, Future[None]]):
        self.calls = calls

    def result(self, timeout_s: float | None = None) -> list[Any]:
        return [call.result() for call in self.calls.values()]

    def raise_failures(self) -> None:
        for call in self.calls.values():
            if call.done():
                call.result()


class Engines:
    """Two engines, each of which does one thing at a time; the first may be dead."""

    def __init__(self, is_first_dead: bool):
        self.is_first_dead = is_first_dead
        self.receivers = [WeightReceiver(CPU), WeightReceiver(CPU)]
        self.threads = [ThreadPoolExecutor(1), ThreadPoolExecutor(1)]
        self.joins = Joins({})

    def start(self, method: str, arguments: dict[int, tuple[Any, ...]]) -> Joins:
        assert method == "join_weight_group"
        self.joins = Joins({i: self.threads[i].submit(self._join, i, *group) for i, group in arguments.items()})
        return self.joins

    def _join(self, number: int, spec: GroupSpec, first_rank: int) -> None:
        if number == 0 and self.is_first_dead:
            raise StrategyError("engine 0 is dead")
        self.receivers[number].join(spec, first_rank)


def test_an_engine_does_not_wait_for_one_that_died_before_it_joined() -> None:
    """It would hear nothing of the next group until the time limit of this one."""
    engines = Engines(is_first_dead=True)
    with pytest.raises(StrategyError, match="engine 0 is dead"):
        BroadcastRouteSender(READERS, PLAN, CPU, engines)
    alive = engines.joins.calls[1]
    wait([alive], timeout=LONGEST_S)
    with pytest.raises(StrategyError, match="its sender has closed it, or has ended"):
        alive.result(timeout=0)

    engines.is_first_dead = False
    lane = BroadcastRouteSender(READERS, PLAN, CPU, engines)
    assert [call.done() for call in engines.joins.calls.values()] == [True, True]
    lane.close()
    for receiver in engines.receivers:
        receiver.close()


def _open_and_stay(pipe: Connection) -> None:
    store = BroadcastGroup.open_store("127.0.0.1")
    pipe.send(GroupSpec("test", "127.0.0.1", store.port, 3, "gloo"))
    pipe.recv()


def test_a_receiver_does_not_wait_in_a_group_whose_sender_died() -> None:
    context = multiprocessing.get_context("forkserver")
    pipe, other_end = context.Pipe()
    sender = context.Process(target=_open_and_stay, args=(other_end,), daemon=True)
    sender.start()
    with ThreadPoolExecutor() as threads:
        joining = threads.submit(BroadcastGroup, pipe.recv(), 1, CPU)
        assert not wait([joining], timeout=0.5).done
        sender.kill()
        with pytest.raises(StrategyError, match="its sender has closed it, or has ended"):
            joining.result(timeout=LONGEST_S)
