"""A trainer and a sampler (hf_infer) in two processes on one device, as in a run whose roles share it, without Ray:
updates, weights by CUDA IPC (by shared memory in a rehearsal), and each away in host memory while the other works."""

from __future__ import annotations

import asyncio
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from roll.configs.memory.parts import total
from roll.types.batch import MicroBatch
from roll.types.rollout import Generation
from roll.utils.files import read_object
from tests.gpu.check import Figures, largest, smallest
from tests.gpu.checks import trainers
from tests.gpu.checks.memory import planned_memory, random_rows
from tests.gpu.checks.trainers import Kind, held_bytes
from tests.gpu.place import SHAPE_OF_HALF_A_BILLION, SHAPE_OF_SEVEN_BILLION, Place, seconds_of

_UPDATES = 3
_PROMPTS, _NEW_TOKENS = 8, 24
_START_LIMIT_S, _LIMIT_S = 150.0, 220.0
_FEW_BYTES, _MANY_BYTES = 200_000, 256 << 20  # of a bucket: several for a model
_LARGE_MODEL_RATE = 3e-4  # a wide model moves further with a step of every weight: bf16 would then round more
_ADAPTERS = {"lora_target": "all-linear", "lora_rank": 16, "lora_alpha": 32}
_ADAPTER_RATE = 3e-3
_ROWS = {"cuda": (4, 1025), "cpu": (4, 33)}  # of an update of 7B, and their tokens

Size = Literal["tiny", "0.5b", "7b"]
_LEAST_MOVED = 1e-12  # below, nothing has moved


_SHAPES = {"0.5b": SHAPE_OF_HALF_A_BILLION, "7b": SHAPE_OF_SEVEN_BILLION}


@dataclass(frozen=True)
class _Handover:
    """What both processes know. `address`: of the socket at which the sampler takes calls. `rows`: of an update, and
    the tokens of each; None: those of the parity tests."""

    kind: Kind
    run: Any
    dtype: str
    device: str
    bucket_bytes: int
    address: str
    rows: tuple[int, int] | None


def hands_over(
    place: Place,
    kind: Kind,
    settings: dict[str, Any],
    adapts: bool = False,
    size: Size = "tiny",
    mixture: bool = False,
) -> Figures:
    """Three updates; after each the sampler's answers, and what the trainer says of them. `moved` is how far an update
    moves log-probs of the same tokens: a gap of that size would be old weights."""
    address = str(Path(tempfile.mkdtemp(prefix="h-")) / "socket")
    if size == "tiny":
        model_dir = place.mixture() if mixture else place.tiny_model()
        adapter = trainers.adapter_of(model_dir, place.directory) if adapts else None
        model = {"dtype": "fp32"} | (trainers.lora_settings(adapter) if adapter else {})
        run = trainers.run_of(kind, model_dir, settings, model)
        both = _Handover(kind, run, "fp32", place.device, _FEW_BYTES, address, None)
    else:
        model_dir = place.large_model(_SHAPES[size])
        model = {"dtype": "bf16"} | (_ADAPTERS if adapts else {})
        run = trainers.run_of(kind, model_dir, settings, model)
        run = replace(run, training={"learning_rate": _ADAPTER_RATE if adapts else _LARGE_MODEL_RATE})
        rows = _ROWS[place.device] if size == "7b" else None
        both = _Handover(kind, run, "bf16", place.device, _MANY_BYTES, address, rows)
    with trainers.ranks_of(place, kind, 1) as training, place.ranks(1) as sampling, ThreadPoolExecutor(2) as threads:
        calls = [
            threads.submit(training.run, _train, both, timeout_s=_LIMIT_S),
            threads.submit(sampling.run, _sample, both, model_dir, timeout_s=_LIMIT_S),
        ]
        ended, _ = wait(calls, return_when=FIRST_EXCEPTION)
        for pool in (training, sampling):
            pool.close()  # so that the other's call ends, too
    for who, call in zip(("trainer", "sampler"), calls, strict=True):
        if call in ended and (error := call.exception()):  # the other one fails since this one has
            raise AssertionError(f"{who}: {error}")
    found: dict[str, float] = calls[0].result()[0]
    if both.rows:
        planned = _planned_bytes(both)
        found |= {"planned_gb": planned / 1e9, "peak_to_planned": found["peak_gb"] * 1e9 / planned}
    return found


def _planned_bytes(both: _Handover) -> float:
    """What a dry run says of the trainer in an update, without contexts and communicators, which torch does not
    count."""
    assert both.rows is not None
    memory = planned_memory(both.kind, both.run, 1, both.rows[0] * both.rows[1])
    return sum(total(parts) for parts in memory.states.values()) + total(memory.passes["training"])


# The trainer's process, which says what happens when.


def _train(both: _Handover) -> dict[str, float]:
    from roll.distributed.executor.weights.sender import WeightSender
    from roll.distributed.strategy.base import ALL_STATES, State

    module = trainers.helpers_of(both.kind)
    with _Sampler(both.address) as sampler, module.trainer(both.run) as strategy:
        device = strategy.context.device
        sender = WeightSender(0, device)
        gaps, moved, norms = [], [], []
        left, sampler_left = [], []
        held = sampler_held = sync_bytes = peak = 0
        update = _update_of(both, strategy)
        rows: list[MicroBatch] = []
        for version in range(_UPDATES + 1):
            if version:
                before = _log_probs(strategy, rows)
                if device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                norms.append(update())
                if device.type == "cuda":
                    peak = max(peak, torch.cuda.max_memory_allocated())
                held = max(held, held_bytes(device))
                moved.append(np.abs(_log_probs(strategy, rows) - before))
            strategy.offload_states(ALL_STATES - {State.WEIGHTS})
            sampler.call("come_back", [State.WEIGHTS.value])
            _publish(strategy, sender, sampler, both, version)
            if version == 0:
                sync_bytes = sender.sent_bytes
            strategy.offload_states(frozenset({State.WEIGHTS}))
            left.append(held_bytes(device))
            sampler.call("come_back", [State.KV_CACHE.value])
            rows, sampled = _rows_of(sampler.call("sample", version))
            sampler_held = max(sampler_held, sampler.call("held"))
            sampler_left.append(sampler.call("leave"))
            strategy.load_states(ALL_STATES)
            gaps.append(np.abs(_log_probs(strategy, rows) - sampled))
        whole = _seconds_of_a_sync(strategy, sender, sampler, both)
        sender.close()
    mean_gap = largest(gap.mean() for gap in gaps)
    return {
        "log_prob_gap_max": largest(gap.max() for gap in gaps),
        "log_prob_gap_mean": mean_gap,
        "moved": smallest(by.max() for by in moved),
        "gap_to_moved": mean_gap / max(smallest(by.mean() for by in moved), _LEAST_MOVED),
        "grad_norm": smallest(norms),
        "trainer_left_fraction": max(left) / max(held, 1),
        "sampler_left_fraction": max(sampler_left) / max(sampler_held, 1),
        "trainer_left_bytes": max(left),
        "sampler_left_bytes": max(sampler_left),
        "weight_sync_s": whole,
        "weight_sync_gb": sync_bytes / 1e9,
        "weight_sync_s_per_gb": whole / (sync_bytes / 1e9),
        "peak_gb": peak / 1e9,
    }


def _update_of(both: _Handover, strategy: Any) -> Callable[[], float]:
    """An update, which returns the norm of its gradient."""
    if both.rows is None:
        return lambda: trainers.helpers_of(both.kind).one_update(strategy, both.run)["grad_norm"]
    from tests.parity.strategies.reference import BentLoss, scale_of

    vocab_size = int(read_object(both.run.model_dir / "config.json")["vocab_size"])
    batches = [random_rows(*both.rows, vocab_size, 0, num_prompt=both.rows[1] // 2)]
    return lambda: strategy.train_step(batches, BentLoss(), scale_of(batches), 1.0)[1]["grad_norm"]


def _publish(strategy: Any, sender: Any, sampler: _Sampler, both: _Handover, version: int) -> None:
    """As a worker of a run sends them: all, and from the second update on those that training changes."""
    plan, whole = _plan(both), version == 0
    buckets = strategy.export_weights(both.bucket_bytes, plan.senders, whole)
    versions = sender.send(buckets, sampler, plan, version, whole)
    if versions != [version]:
        raise AssertionError(f"after the update to version {version} the sampler reports {versions}")


def _plan(both: _Handover) -> Any:
    from roll.distributed.executor.weights.sender import EngineRoute, SendPlan

    return SendPlan((EngineRoute("cuda_ipc" if both.device == "cuda" else "memory", (0,)),))


def _seconds_of_a_sync(strategy: Any, sender: Any, sampler: _Sampler, both: _Handover) -> float:
    """The least of three updates with all weights, once everything is warm, both sides' weights on the device."""
    from roll.distributed.strategy.base import State

    sampler.call("come_back", [State.WEIGHTS.value])
    plan, found = _plan(both), []
    for number in range(3):
        buckets = strategy.export_weights(both.bucket_bytes, plan.senders, True)
        found.append(seconds_of(partial(sender.send, buckets, sampler, plan, _UPDATES + 1 + number, True)))
    return min(found)


def _rows_of(answers: Sequence[tuple[np.ndarray, Generation]]) -> tuple[list[MicroBatch], np.ndarray]:
    """Prompts with their answers, and the answers' log-probs one after the other."""
    rows = []
    for prompt_ids, answer in answers:
        ids = torch.from_numpy(np.concatenate([prompt_ids, answer.token_ids]).astype(np.int64))[None]
        mask = torch.arange(ids.shape[1])[None] >= len(prompt_ids)
        zeros = torch.zeros(ids.shape)
        rows.append(MicroBatch(ids, torch.tensor([ids.shape[1]]), mask, torch.ones(1), zeros, zeros, zeros))
    return rows, np.concatenate([answer.log_probs for _, answer in answers])


def _log_probs(strategy: Any, rows: list[MicroBatch]) -> np.ndarray:
    """Of the answers' tokens, one row after the other, by the trainer."""
    from tests.parity.strategies.reference import join

    found = strategy.log_probs([join(rows)], 1.0)[0].log_probs
    assert found is not None
    parts = [found[number, : row.input_ids.shape[1]][row.response_mask[0]] for number, row in enumerate(rows)]
    return torch.cat(parts).float().numpy()


class _Sampler:
    """The sampler as its trainer sees it: one call at a time, each answered. The only receiver of a `WeightSender`."""

    def __init__(self, address: str):
        self._connection = _connect(address)

    def __enter__(self) -> _Sampler:
        return self

    def __exit__(self, *of_error: object) -> None:
        self._connection.close()

    def call(self, method: str, *arguments: Any) -> Any:
        return self.start(method, {0: arguments}).result()[0]

    def start(self, method: str, arguments: dict[int, tuple[Any, ...]]) -> _Reply:
        self._connection.send((method, arguments[0]))
        return _Reply(self._connection)


class _Reply:
    def __init__(self, connection: Connection):
        self._connection = connection
        self._answer: tuple[bool, Any] | None = None

    def result(self, timeout_s: float | None = None) -> list[Any]:
        succeeded, value = self._answer = self._answer or self._connection.recv()
        if not succeeded:
            raise AssertionError(f"the sampler failed: {value}")
        return [value]

    def raise_failures(self) -> None:
        if self._answer is None and self._connection.poll():
            self.result()


def _connect(address: str) -> Connection:
    deadline = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            return Client(address, "AF_UNIX")
        except (ConnectionRefusedError, FileNotFoundError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


# The sampler's process, which does as it is called.


def _sample(both: _Handover, model_dir: Path) -> None:
    from roll.distributed.strategy.base import ALL_STATES, State
    from tests.helpers.engines import EngineHarness, prompt

    harness = EngineHarness("hf_infer", model_dir, device=both.device, dtype=both.dtype)
    engine, device = harness.engine, torch.device("cuda:0" if both.device == "cuda" else "cpu")

    def held() -> int:
        return held_bytes(device)

    def move(by: Callable[[frozenset[State]], None], states: Iterable[State]) -> None:
        harness.run(asyncio.to_thread(by, frozenset(states)))

    def leave() -> int:
        move(engine.offload_states, ALL_STATES)
        return held()

    def come_back(states: list[str]) -> None:
        move(engine.load_states, [State(value) for value in states])

    def receive_weights(source: Any, is_first: bool, version: int | None, whole: bool) -> int:
        async def receive() -> None:
            if is_first:
                await engine.begin_weight_update(whole)
            await engine.import_weights(source)
            if version is not None:
                await engine.finish_weight_update(version)

        harness.run(receive())
        return engine.policy_version

    def sample(version: int) -> list[tuple[np.ndarray, Generation]]:
        requests = [
            harness.request(prompt(5 + number), max_new_tokens=_NEW_TOKENS, seed=version * _PROMPTS + number)
            for number in range(_PROMPTS)
        ]
        answers = harness.generate(*requests)
        return [(request.prompt_ids, answer) for request, (answer,) in zip(requests, answers, strict=True)]

    methods = {each.__name__: each for each in (held, leave, come_back, receive_weights, sample)}
    leave()
    with Listener(both.address, "AF_UNIX") as listener, listener.accept() as connection:
        while True:
            try:
                method, arguments = connection.recv()
            except EOFError:  # the trainer is done
                break
            try:
                connection.send((True, methods[method](*arguments)))
            except Exception:
                connection.send((False, traceback.format_exc()))
    harness.close()
