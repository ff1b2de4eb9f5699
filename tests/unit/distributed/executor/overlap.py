"""A run on a virtual clock whose roles share devices at random: the real core, client, engines' workers and Placement
around strategies that sample a token a second."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roll.configs.plan.batch_plan import RolloutBounds
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.placement import Claim, Placement
from roll.distributed.executor.processes.cluster import Calls
from roll.distributed.executor.rollout.engine_client import EngineClient
from roll.distributed.executor.rollout.generate_worker import GenerateWorker
from roll.distributed.scheduler.rollout_core import RolloutCore
from roll.distributed.strategy.base import ALL_STATES, State
from roll.types.rollout import Answered, Generation, GenerationRequest, SamplingParams, Task, TrajectoryGroup
from tests.fakes import FakeGenerateStrategy
from tests.helpers.rollouts import arrived, here

TASK = Task("t", "d", np.zeros(1, np.int32))
WEIGHTS = frozenset({State.WEIGHTS})
STRATEGY = f"{__name__}:Ticking"


@dataclass(frozen=True)
class Shape:
    """Devices of each engine, of the trainer, and of roles that score before it trains."""

    engines: Sequence[frozenset[int]]
    trainer: frozenset[int]
    scorers: Sequence[frozenset[int]]
    bounds: RolloutBounds
    group_size: int
    seed: int
    enough: int | None = None
    slots: int = 3
    leaves_whole: bool = False
    names: Sequence[str] = ("", "environments")  # of the clients, which take turns


class Ticking(FakeGenerateStrategy):
    """A token of an answer is its place in the row; answers of group g are as long as `length` says."""

    length: Callable[[int, int], int]
    num_running = 0
    most_running = 0
    num_sampled = 0

    def __init__(self, role: WorkerConfig, context: Any):
        super().__init__(role, context)
        self.away: frozenset[State] = frozenset()
        self.stops: dict[str, asyncio.Event] = {}

    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        stop = self.stops[request.request_id] = asyncio.Event()
        try:
            return await asyncio.gather(*(self._one(request, number, stop, answered) for number in request.samples))
        finally:
            del self.stops[request.request_id]

    async def _one(
        self, request: GenerationRequest, number: int, stop: asyncio.Event, answered: Answered | None
    ) -> Generation:
        group, begun = int(request.prompt_ids[0]), len(request.prompt_ids) - 1
        whole = self.length(group, number)
        versions: list[int] = []
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        while begun + len(versions) < whole and not stop.is_set():
            await asyncio.sleep(1)
            if not self.away and not stop.is_set():
                versions.append(self.version)
                self.num_sampled += 1
        self.num_running -= 1
        ids = np.arange(begun + 1, begun + 1 + len(versions), dtype=np.int32)
        reason = "stop" if begun + len(versions) == whole else "abort"
        answer = Generation(ids, -ids.astype(np.float32), np.array(versions, np.int32), reason)
        if answered is not None:
            answered(number, answer)
        return answer

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        for name in list(self.stops) if request_ids is None else request_ids:
            if name in self.stops:
                self.stops[name].set()
        while any(name in self.stops for name in request_ids or ()):
            await asyncio.sleep(0.25)

    def offload_states(self, states: frozenset[State]) -> None:
        self.away |= states

    def load_states(self, states: frozenset[State]) -> None:
        self.away -= states


class Engine:
    """A worker in this process, as Ray would reach it."""

    def __init__(self, shape: Shape):
        blueprint = Blueprint("actor_infer", 0, 1, 0, 0, "cpu", STRATEGY, WorkerConfig())
        self.worker = GenerateWorker(blueprint, shape.slots)
        assert isinstance(self.worker.strategy, Ticking)
        self.strategy = self.worker.strategy
        self.strategy.length = lambda group, number: length_of(shape, group, number)
        self.call = self

    def remote(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        async def run() -> object:
            reply = getattr(self.worker, method)(*arrived(arguments))
            return await reply if inspect.isawaitable(reply) else reply

        return asyncio.ensure_future(run())


def length_of(shape: Shape, group: int, number: int) -> int:
    return 1 + int(np.random.default_rng([shape.seed, group, number]).lognormal(1.0, 1.0))


class Workers:
    role = "actor_infer"

    def __init__(self, engines: Sequence[Engine]):
        self.handles = engines


@dataclass(eq=False)
class Role:
    """Its moves are made after Placement has asked for them."""

    role: str
    parts: Sequence[frozenset[int]]
    there: list[frozenset[State]]
    moves: list[Callable[[], Awaitable[None]]]
    engines: Sequence[Engine] = ()
    told: Counter[str] = field(default_factory=Counter)

    @property
    def ready(self) -> Calls:
        return Calls(self.role, "ready", {})

    def offload(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self._move("offload_states", states, parts)

    def hand_over(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        assert any(there == ALL_STATES for number, there in enumerate(self.there) if number not in parts)
        return self._move("hand_over", states, parts)

    def load(self, states: frozenset[State], parts: Sequence[int]) -> Calls:
        return self._move("load_states", states, parts)

    def _move(self, method: str, states: frozenset[State], parts: Sequence[int]) -> Calls:
        self.told[method] += len(parts)
        for part in parts:
            if method == "load_states":
                assert not self.there[part] & states
                self.there[part] |= states
            else:
                assert states <= self.there[part]
                self.there[part] -= states
        each = len(self.engines) // len(self.parts)
        for engine in (self.engines[part * each + i] for part in parts for i in range(each)):
            self.moves.append(lambda engine=engine: getattr(engine.worker, method)(states))
        return Calls(self.role, method, {})


class Play:
    """Trains `num_steps` steps."""

    def __init__(self, shape: Shape):
        self.shape = shape
        self.engines = [Engine(shape) for _ in shape.engines]
        self.moves: list[Callable[[], Awaitable[None]]] = []
        parts = [frozenset().union(*shape.engines)] if shape.leaves_whole else shape.engines
        self.infer = Role("infer", parts, [ALL_STATES for _ in parts], self.moves, self.engines)
        self.train = self._role("train", shape.trainer)
        self.scorers = [self._role(f"scorer {i}", devices) for i, devices in enumerate(shape.scorers)]
        roles = (self.train, *self.scorers, self.infer)
        self.placement = Placement(roles, [self.infer] if not shape.bounds.alternates else [])
        for role in roles:
            self.placement.join(role)
        workers = Workers(self.engines)
        self.clients = [EngineClient(workers, name, shape.slots) for name in shape.names]  # type: ignore[arg-type]
        self.core = RolloutCore(self.play_group, shape.bounds)
        self.answers: dict[int, list[Generation]] = {}
        self.trained: list[list[int]] = []
        self.oldest: list[int] = []  # age of the oldest token, by step
        self.sampled_in_turns = 0  # tokens, while the trainer had its devices

    def _role(self, name: str, devices: frozenset[int]) -> Role:
        return Role(name, [devices], [ALL_STATES], self.moves)

    def play_group(self, number: int) -> Coroutine[Any, Any, TrajectoryGroup]:
        return self._group(number)

    async def _group(self, number: int) -> TrajectoryGroup:
        shape = self.shape
        enough = shape.enough if number % 2 else None
        request = GenerationRequest(
            f"{number}", np.array([number], np.int32), SamplingParams(10**6), shape.group_size, order=number,
            enough=enough,
        )  # fmt: skip
        told: Counter[int] = Counter()
        client = self.clients[number % len(self.clients)]
        answers = await client.generate(request, lambda number, answer: told.update([number]))
        assert told == Counter(range(shape.group_size))  # each once
        self.answers[number] = [here(answer) for answer in answers]
        return TrajectoryGroup(TASK, number, ())

    async def settle(self) -> None:
        moves, self.moves[:] = list(self.moves), []
        for move in moves:  # offloads come before loads
            await move()
        self._look()

    def _look(self) -> None:
        for part, devices in enumerate(self.infer.parts):
            for other in (self.train, *self.scorers):
                both = self.infer.there[part] == ALL_STATES and other.there[0] == ALL_STATES
                assert self._is_before_the_first_turn or not (devices & other.parts[0] and both)

    _is_before_the_first_turn = True

    async def turn(self, role: Role, seconds: float) -> None:
        with self.placement.hold(Claim(role)):
            await self.settle()
            before = [engine.strategy.num_sampled for engine in self.engines]
            away = [bool(engine.strategy.away) for engine in self.engines]
            await asyncio.sleep(seconds)
            assert away == [bool(engine.strategy.away) for engine in self.engines]
            sampled = [engine.strategy.num_sampled - n for engine, n in zip(self.engines, before, strict=True)]
            assert not any(number for number, is_away in zip(sampled, away, strict=True) if is_away)
            self.sampled_in_turns += sum(sampled)
        await self.settle()

    async def run(self, num_steps: int) -> None:
        for engine in self.engines:
            await engine.worker.setup()
        for step in range(num_steps):
            with self.placement.hold(Claim(self.infer)):
                await self.settle()
                self._is_before_the_first_turn = False
                groups = await self.core.collect(step)
            await self.settle()
            self._take([group.group_id for group in groups.groups], step)
            with self.placement.reserved(Claim(self.train)):
                for scorer in self.scorers:
                    await self.turn(scorer, 2.0)
                await self.turn(self.train, 5.0)
                if (step + 1) % self.shape.bounds.sync_interval == 0:
                    with self.placement.hold(Claim(self.train, WEIGHTS), Claim(self.infer, WEIGHTS)):
                        await self.settle()
                        for engine in self.engines:
                            assert State.WEIGHTS not in engine.strategy.away
                            engine.strategy.version = step + 1
                    await self.settle()
                    self.core.published(step + 1)
            await self.settle()
        await self.core.cancel()

    def _take(self, numbers: list[int], step: int) -> None:
        self.trained.append(numbers)
        versions = [answer.policy_versions for number in numbers for answer in self.answers[number]]
        self.oldest.append(step - min(int(v.min()) for v in versions if len(v)))
