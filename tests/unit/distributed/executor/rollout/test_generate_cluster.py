"""Which engines are told what, when some of a role leave their devices or come back."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from roll.distributed.executor.processes.cluster import Calls
from roll.distributed.executor.processes.worker_process import Failure
from roll.distributed.executor.rollout.engines import GenerateCluster
from roll.distributed.strategy.base import ALL_STATES

TWO_DEVICES_EACH = [SimpleNamespace(devices=(2 * rank, 2 * rank + 1)) for rank in range(3)]


class Workers:
    role, handles = "actor_infer", (None, None, None)

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []

    def start(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> Calls:
        self.told.append((method, sorted(arguments)))
        return Calls(self.role, method, {})


class Cluster(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.slots)


class Recovery:
    """Brings rank 1 back, and rank 2 as soon as somebody looks."""

    def __init__(self) -> None:
        self.gone = {1}

    def notice(self) -> None:
        self.gone.add(2)

    def serving(self) -> list[int]:
        return sorted({0, 1, 2} - self.gone)

    def replaces(self, failure: Failure) -> bool:
        return failure.rank in self.gone


def engines(**options: Any) -> tuple[GenerateCluster, Workers]:
    workers = Workers()
    cluster = Cluster(slots=TWO_DEVICES_EACH, workers=workers)
    return GenerateCluster(cluster, **options), workers  # type: ignore[arg-type]


@pytest.mark.parametrize("leaves_whole", [False, True])
def test_each_engine_is_a_part_unless_all_leave_together(leaves_whole: bool) -> None:
    made, workers = engines(leaves_whole=leaves_whole)
    assert made.parts == ([{*range(6)}] if leaves_whole else [{0, 1}, {2, 3}, {4, 5}])
    ranks = [0, 1, 2] if leaves_whole else [0, 2]
    parts = [0] if leaves_whole else [0, 2]
    for move, method in (
        (made.offload, "offload_states"), (made.hand_over, "hand_over"), (made.load, "load_states")
    ):  # fmt: skip
        move(ALL_STATES, parts)
        assert workers.told.pop() == (method, ranks)


def test_engines_that_are_replaced_are_not_told_and_others_say_their_load() -> None:
    made, workers = engines(recovery=Recovery())
    calls = made.offload(ALL_STATES, [0, 1, 2])
    assert workers.told == [("offload_states", [0])]
    assert calls.forgives(Failure(2, "killed", died=True)) and not calls.forgives(Failure(0, "no memory"))
    made, _ = engines(room=7)
    assert made.client("environments")._router._room == made._router._room == 7
