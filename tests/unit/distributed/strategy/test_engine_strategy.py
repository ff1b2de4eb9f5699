"""Requests of an engine that never replies: what is left of them when their caller goes."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any

import numpy as np
import torch

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext, State
from roll.distributed.strategy.engine_strategy import EngineStrategy, InFlight, Samples
from roll.distributed.weights.bucket import BucketSource, GroupSpec
from roll.types.rollout import Generation, GenerationRequest, SamplingParams


class Silent(EngineStrategy):
    """Has begun the samples of these names, and ends none."""

    def __init__(self) -> None:
        super().__init__(WorkerConfig(), RankContext("actor_infer", 0, 1, 0, 0, torch.device("cpu")))
        self.begun: list[str] = []

    def _failures(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def _check(self, request: GenerationRequest) -> None:
        pass

    def _sample_name(self, request: GenerationRequest, index: int) -> str:
        return f"{request.request_id}/{index}"

    async def _sample(self, flight: InFlight, name: str, request: GenerationRequest, index: int) -> Generation:
        self.begun.append(name)
        return await asyncio.Future()

    async def setup(self) -> None: ...  # type: ignore[override]
    async def start(self) -> None: ...
    async def join_weight_group(self, group: GroupSpec, first_rank: int) -> None: ...
    async def import_weights(self, source: BucketSource) -> None: ...
    async def _abort_samples(self, samples: Samples) -> None: ...
    async def _stop_sampling(self) -> None: ...
    async def _go_on_sampling(self) -> None: ...
    async def _begin_update(self, whole: bool) -> None: ...
    async def _finish_update(self) -> None: ...
    async def _set_version(self, version: int) -> None: ...

    async def _free_memory(self, states: frozenset[State]) -> frozenset[State]:
        return states

    async def _restore_memory(self, states: frozenset[State]) -> None: ...

    async def _while_alive(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Leaves at once, before any sample has begun."""
        work.close()
        raise asyncio.CancelledError


def test_samples_of_a_caller_that_has_gone_are_never_begun_and_leave_nothing_behind() -> None:
    """A coroutine that nobody awaits is a warning, and a sample that was lost."""
    engine, ids = Silent(), np.array([4, 5], np.int32)

    async def ask() -> None:
        with suppress(asyncio.CancelledError):
            await engine.generate(GenerationRequest("one", ids, SamplingParams(4), num_samples=3))

    gc.collect()  # what other tests left
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        asyncio.run(ask())
        gc.collect()
    assert [text for warning in found if "never awaited" in (text := str(warning.message))] == []
    assert engine.begun == []
