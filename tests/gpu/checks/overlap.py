"""Two trainer ranks and two samplers (hf_infer), a pair on each of two GPUs: a publish as it is, in which a bucket is
gathered while the samplers read the one before, against one in which neither begins before the other is done."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.gpu.check import Figures
from tests.gpu.checks import trainers
from tests.gpu.checks.handover import _LIMIT_S, _Handover, _sample, _Sampler
from tests.gpu.place import SHAPE_OF_ONE_AND_A_HALF_BILLION, Place

_BUCKET_BYTES = {"cuda": 128 << 20, "cpu": 200_000}  # about 30 of a 1.5B
_ROUNDS = 5


def gathers_beside_imports(place: Place) -> Figures:
    """The least of five publishes of each kind, in turns: seconds, and how they compare."""
    model_dir = place.large_model(SHAPE_OF_ONE_AND_A_HALF_BILLION)
    run = trainers.run_of("fsdp2", model_dir, {}, {"dtype": "bf16"})
    directory = Path(tempfile.mkdtemp(prefix="o-"))
    sides = [
        _Handover("fsdp2", run, "bf16", place.device, _BUCKET_BYTES[place.device], str(directory / f"{number}"), None)
        for number in range(2)
    ]
    devices = [replace(place, devices=(device,)) for device in place.devices[:2]]
    with ExitStack() as stack:
        training = stack.enter_context(trainers.ranks_of(place, "fsdp2", 2))
        sampling = [stack.enter_context(device.ranks(1)) for device in devices]
        threads = stack.enter_context(ThreadPoolExecutor(3))
        calls = [threads.submit(training.run, _publish, sides, timeout_s=_LIMIT_S)]
        for pool, side in zip(sampling, sides, strict=True):
            calls.append(threads.submit(pool.run, _sample, side, model_dir, timeout_s=_LIMIT_S))
        wait(calls, return_when=FIRST_EXCEPTION)
        for pool in (training, *sampling):
            pool.close()  # so that the others' calls end, too
    names = ("trainer", "first sampler", "second sampler")
    if errors := [f"{who}: {e}" for who, call in zip(names, calls, strict=True) if (e := call.exception())]:
        raise AssertionError("; ".join(errors))
    found: dict[str, float] = calls[0].result()[0]
    return found


def _publish(sides: Sequence[_Handover]) -> dict[str, float]:
    """Runs on each rank of the trainer; the first one calls the samplers."""
    from roll.distributed.executor.weights.sender import EngineRoute, SendPlan, WeightSender
    from roll.distributed.strategy.base import ALL_STATES

    both = sides[0]
    with ExitStack() as stack:
        strategy = stack.enter_context(trainers.helpers_of("fsdp2").trainer(both.run))
        is_lead = dist.get_rank() == 0
        peers = _Samplers([stack.enter_context(_Sampler(side.address)) for side in sides] if is_lead else [])
        if is_lead:
            peers.call("come_back", [state.value for state in ALL_STATES])
        device = strategy.context.device
        sender = WeightSender(dist.get_rank(), device)
        both_ranks: Any = dist.new_group(backend="gloo")
        route = "cuda_ipc" if both.device == "cuda" else "memory"
        plan = SendPlan(tuple(EngineRoute(route, (rank,)) for rank in range(2)))
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for version in range(2 * _ROUNDS + 1):
            in_turns = version % 2 == 1
            dist.barrier(both_ranks)
            started = time.monotonic()
            buckets = strategy.export_weights(both.bucket_bytes, plan.senders, True)
            if in_turns:
                buckets = _after_imports(buckets, peers, both_ranks)
            versions = sender.send(buckets, peers, plan, version, True)
            if is_lead and versions != [version] * 2:
                raise AssertionError(f"after the update to version {version} the samplers report {versions}")
            dist.barrier(both_ranks)
            if version > 0:  # the first one opens buffers
                seconds[in_turns].append(time.monotonic() - started)
        started = time.monotonic()
        for _ in strategy.export_weights(both.bucket_bytes, plan.senders, True):
            pass
        if device.type == "cuda":
            torch.cuda.synchronize()
        gathers = time.monotonic() - started
        sync_bytes = sender.sent_bytes
        sender.close()
    overlapped, ordered = min(seconds[False]), min(seconds[True])
    return {
        "overlapped_s": overlapped,
        "in_turns_s": ordered,
        "overlapped_to_in_turns": overlapped / ordered,
        "gathers_s": gathers,
        "weight_sync_gb": sync_bytes / 1e9,
    }


def _after_imports(buckets: Iterator[Any], peers: _Samplers, ranks: Any) -> Iterator[Any]:
    """The buckets; each is gathered when the samplers have read what was announced before."""
    while True:
        peers.wait()
        dist.barrier(ranks)
        if (bucket := next(buckets, None)) is None:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        dist.barrier(ranks)  # no import begins beside a gather of another rank
        yield bucket


class _Samplers:
    """The samplers as the first rank sees them; there are none to the other."""

    def __init__(self, samplers: Sequence[_Sampler]):
        self._samplers = samplers
        self._last: _Replies | None = None

    def call(self, method: str, *arguments: Any) -> None:
        self.start(method, dict.fromkeys(range(len(self._samplers)), arguments)).result()

    def start(self, method: str, arguments: dict[int, tuple[Any, ...]]) -> _Replies:
        starts: list[Callable[..., Any]] = [sampler.start for sampler in self._samplers]
        self._last = _Replies([starts[number](method, {0: given}) for number, given in arguments.items()])
        return self._last

    def wait(self) -> None:
        if self._last is not None:
            self._last.result()


class _Replies:
    def __init__(self, replies: Sequence[Any]):
        self._replies = replies

    def result(self, timeout_s: float | None = None) -> list[Any]:
        return [value for reply in self._replies for value in reply.result(timeout_s)]

    def raise_failures(self) -> None:
        for reply in self._replies:
            reply.raise_failures()
