"""Base of `vllm` and `sglang`: an engine that samples in processes of its own, one request per sample."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from roll.configs.tables.sight import VisionModel
from roll.distributed.strategy.base import RankContext, State
from roll.distributed.strategy.generate_base import GenerateStrategy
from roll.errors import StrategyError
from roll.types.rollout import Answered, Generation, GenerationRequest
from roll.utils.background import start

if TYPE_CHECKING:
    from roll.configs.sections.cluster import WorkerConfig

T = TypeVar("T")
Samples = Mapping[str, asyncio.Task[Generation]]
MEMORY_TAGS = {State.WEIGHTS: "weights", State.KV_CACHE: "kv_cache"}  # both engines' names for them
_ABORT_RETRY_S = 0.05


@dataclass
class InFlight:
    """A request, and its samples by the names that the engine knows them by."""

    samples: dict[str, asyncio.Task[Generation]] = field(default_factory=dict)
    is_aborted: bool = False


class EngineStrategy(GenerateStrategy):
    """Requests in flight, reasons to hold sampling (a weight update, memory given back), and the states that
    are asleep. Subclasses tell their engine."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        self._role = role
        self._context = context
        self._on_cpu = context.device.type == "cpu"
        self._loop: asyncio.AbstractEventLoop | None = None  # set by `start`
        self._policy_version = 0
        self._in_flight: dict[str, InFlight] = {}
        self._holds: set[str] = set()
        self._num_updates = 0  # begun
        self._asleep: frozenset[State] = frozenset()

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @property
    def num_weight_receivers(self) -> int:
        return self._role.num_gpus_per_worker

    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        self._check(request)
        if request.request_id in self._in_flight:
            raise StrategyError(
                f"request {request.request_id} is in flight already: give every request an id of its own"
            )
        flight = self._in_flight[request.request_id] = InFlight()
        for index in request.samples:
            name = self._sample_name(request, index)
            flight.samples[name] = start(self._reported(flight, name, request, index, answered))
        try:
            return await self._while_alive(_all(flight.samples.values()))
        finally:
            for task in flight.samples.values():
                task.cancel()  # after a failure of one, or when the caller has gone; engines drop cancelled requests
            del self._in_flight[request.request_id]

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """Returns when these requests have ended."""
        names = list(self._in_flight) if request_ids is None else request_ids
        flights = [self._in_flight[name] for name in names if name in self._in_flight]
        for flight in flights:
            flight.is_aborted = True
        await asyncio.sleep(0)  # a task that is cancelled before its first step could not answer
        while open_samples := {n: t for flight in flights for n, t in flight.samples.items() if not t.done()}:
            await self._abort_samples(open_samples)
            # A sample that the engine did not know yet is aborted in the next round.
            await self._while_alive(asyncio.wait(list(open_samples.values()), timeout=_ABORT_RETRY_S))

    async def begin_weight_update(self, whole: bool = True) -> None:
        await self._hold("weight update")
        self._num_updates += 1
        await self._begin_update(whole)

    async def finish_weight_update(self, version: int) -> None:
        """StrategyError if parameters are missing or the version goes back: the engine then stays held until a full
        update."""
        await self._finish_update()
        if version < self._policy_version:
            raise StrategyError(f"weight update to version {version}, but the engine has {self._policy_version}")
        await self._set_version(version)
        self._policy_version = version
        await self._release("weight update")

    def offload_states(self, states: frozenset[State]) -> None:
        """Called from another thread than the event loop's. On a CPU there is nowhere to go, but keys and values are
        dropped all the same."""
        gone = states & MEMORY_TAGS.keys() - self._asleep
        if gone:
            self._wait(self._sleep(gone))

    def load_states(self, states: frozenset[State]) -> None:
        wake = states & self._asleep
        if wake:
            self._wait(self._wake(wake))

    @property
    def _cache_key(self) -> str | None:
        """Key that requests must share to use each other's cached keys and values. Where those of old weights stay,
        requests that came before an update share none with later ones."""
        return f"after {self._num_updates} updates" if self._context.keeps_kv else None

    async def _sleep(self, states: frozenset[State]) -> None:
        await self._hold("offload")
        self._asleep |= await self._free_memory(states)

    async def _wake(self, states: frozenset[State]) -> None:
        await self._restore_memory(states)
        self._asleep -= states
        if not self._asleep:
            await self._release("offload")

    async def _hold(self, reason: str) -> None:
        if not self._holds:
            await self._stop_sampling()
        self._holds.add(reason)

    async def _release(self, reason: str) -> None:
        """Goes on sampling once there is no reason left to hold it."""
        self._holds.discard(reason)
        if not self._holds:
            await self._go_on_sampling()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None or _running_loop() is loop:
            work.close()
            raise StrategyError("this call blocks: make it from another thread than the event loop's")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    @abstractmethod
    def _failures(self) -> AbstractAsyncContextManager[None]:
        """Raise errors of the engine inside as StrategyError."""

    @abstractmethod
    def _check(self, request: GenerationRequest) -> None:
        """StrategyError for a request that cannot be served."""

    @abstractmethod
    def _sample_name(self, request: GenerationRequest, index: int) -> str:
        """The name of sample `index` in the engine."""

    @abstractmethod
    async def _sample(self, flight: InFlight, name: str, request: GenerationRequest, index: int) -> Generation:
        """One answer; `aborted_answer()` if it is aborted before the engine has it."""

    async def _reported(
        self, flight: InFlight, name: str, request: GenerationRequest, index: int, answered: Answered | None
    ) -> Generation:
        """One answer, `answered` told. The coroutine of the sample begins here: one that was made before, of a task
        that is cancelled before its first step, nobody would await."""
        generation = await self._sample(flight, name, request, index)
        if answered is not None:
            answered(index, generation)
        return generation

    async def _while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. An engine whose requests stay open when it dies raises EngineDied here."""
        return await work

    @abstractmethod
    async def _abort_samples(self, samples: Samples) -> None:
        """Asks the engine to end these, and does not wait for it."""

    @abstractmethod
    async def _stop_sampling(self) -> None:
        """No token is sampled after this returns; requests are kept."""

    @abstractmethod
    async def _go_on_sampling(self) -> None: ...

    @abstractmethod
    async def _begin_update(self, whole: bool) -> None: ...

    @abstractmethod
    async def _finish_update(self) -> None:
        """StrategyError if parameters are missing that had to come."""

    @abstractmethod
    async def _set_version(self, version: int) -> None:
        """Drops cached keys and values, unless they are kept, and marks tokens with this version from now on."""

    @abstractmethod
    async def _free_memory(self, states: frozenset[State]) -> frozenset[State]:
        """Called while held, with requests in flight or without. Returns what is gone, which may be more than was asked
        for."""

    @abstractmethod
    async def _restore_memory(self, states: frozenset[State]) -> None:
        """Called while held, and leaves the engine held."""


def aborted_answer() -> Generation:
    """Return the empty answer to a request that was aborted before the engine began it."""
    return Generation(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32), "abort")


async def _all(tasks: Iterable[asyncio.Task[Generation]]) -> list[Generation]:
    return list(await asyncio.gather(*tasks))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# What every rollout engine refuses before it samples.


def check_request(request: GenerationRequest, limit: int, limit_key: str) -> None:
    """StrategyError for an empty prompt, no sample, an empty stop string, or more than `limit` tokens of prompt and
    answer together; `limit_key` is the setting that raises the limit."""
    num_prompt, sampling = len(request.prompt_ids), request.sampling
    what = f"request {request.request_id}"
    if num_prompt == 0 or request.num_samples < 1:
        raise StrategyError(f"{what} has an empty prompt or requests no sample")
    if num_prompt + sampling.max_new_tokens > limit:
        raise StrategyError(
            f"{what}: prompt of {num_prompt} + max_new_tokens {sampling.max_new_tokens} > {limit_key} {limit}. Shorten "
            f"one of them, or raise {limit_key} in strategy_config."
        )
    if "" in sampling.stop_strings:
        raise StrategyError(f"{what}: stop_strings must not be empty")


def check_sees(request: GenerationRequest, vision: VisionModel | None) -> None:
    """StrategyError for a request with pictures to a model that does not see, and for placeholders in its prompt that
    stand for none: an engine would take them as text."""
    what = f"request {request.request_id}"
    if vision is None:
        if request.media:
            raise StrategyError(f"{what} shows {len(request.media)} pictures to a model that takes text alone")
        return
    named = int(np.isin(request.prompt_ids, vision.placeholders).sum())
    shown = sum(each.length for each in request.media)
    if named != shown:
        raise StrategyError(f"{what}: its prompt has {named} placeholders, and its pictures have {shown} tokens")
