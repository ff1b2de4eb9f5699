"""Small real stand-ins for engines, so that the machinery around them can be tested in milliseconds."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from roll.algorithms.loss import Loss
from roll.configs.plan.train_plan import TrainPlan
from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.executor.pools.job import FinishedJobs, Job
from roll.distributed.executor.rollout.generate_worker import GenerateWorker
from roll.distributed.executor.worker import TrainWorker
from roll.distributed.strategy.base import RankContext, ScoreStrategy, State, TrainStrategy
from roll.distributed.strategy.generate_base import GenerateStrategy
from roll.distributed.weights.bucket import BucketSource, GroupSpec, WeightBucket, fill_buckets
from roll.distributed.weights.transport import WeightReceiver
from roll.errors import StrategyError
from roll.platforms.stores import bind_stores
from roll.types.batch import LossScale, MicroBatch, TokenOutputs
from roll.types.group_codec import TextTable
from roll.types.metrics import MetricSums
from roll.types.rollout import Answered, Generation, GenerationRequest
from roll.utils.background import BackgroundTasks

SENDER = "sender"  # a weight that says which rank has sent it


def move_text(what: str, states: frozenset[State]) -> str:
    return " ".join((what, *sorted(state.value for state in states)))


def join_group() -> None:
    """As the real strategies do: at loopback, where the other ranks look for it, and once in a process."""
    if not torch.distributed.is_initialized():
        bind_stores()
        torch.distributed.init_process_group("gloo")


class FakeScoreStrategy(ScoreStrategy):
    """Log-prob of a token: -(token id) / 100, its value: token id."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        self.context = context
        self.dp_rank, self.dp_size = context.rank, context.world_size
        self.moves: list[str] = []

    def setup(self) -> None:
        if self.dp_size > 1:
            join_group()

    def log_probs(
        self, micro_batches: Sequence[MicroBatch], temperature: float, entropy: bool = False
    ) -> list[TokenOutputs]:
        return [TokenOutputs(log_probs=-b.input_ids / 100 * b.response_mask / temperature) for b in micro_batches]

    def row_scores(self, micro_batches: Sequence[MicroBatch]) -> list[torch.Tensor]:
        """Two labels: the sum of the row's tokens, and the rank."""
        return [
            torch.stack([b.input_ids.sum(1), torch.full((len(b),), self.dp_rank)], 1).float() for b in micro_batches
        ]

    def values(self, micro_batches: Sequence[MicroBatch]) -> list[TokenOutputs]:
        return [TokenOutputs(values=(b.input_ids * b.response_mask).float()) for b in micro_batches]

    def offload_states(self, states: frozenset[State]) -> None:
        self.moves.append(move_text("offload", states))

    def load_states(self, states: frozenset[State]) -> None:
        self.moves.append(move_text("load", states))


class FakeTrainStrategy(FakeScoreStrategy, TrainStrategy):
    """An update adds 1 to every weight. Weights: `a` of 5 bfloat16 and `b` of 40 x 10 float32, both full of the number
    of updates plus the seed; SENDER is the rank."""

    def __init__(self, role: WorkerConfig, context: RankContext, plan: TrainPlan | None):
        super().__init__(role, context)
        self.num_updates = 0

    def train_step(
        self, micro_batches: Sequence[MicroBatch], loss: Loss, scale: LossScale, temperature: float
    ) -> tuple[MetricSums, dict[str, float]]:
        self.num_updates += 1
        sums = MetricSums()
        for batch in micro_batches:
            sums.add("num_micro_batches", 1, 1)
            if batch.advantages is not None:
                sums.add("advantage", (batch.advantages * batch.response_mask).sum(), batch.response_mask.sum())
            sums.add("tokens_per_update", float(scale.num_tokens), 1)
            sums.add("rows_per_update", float(scale.num_samples), 1)
            if batch.ref_log_probs is not None:
                off = (batch.ref_log_probs + batch.input_ids / 100 * batch.response_mask).abs().max()
                sums.maximum("ref_log_prob_error", off)
            if batch.values is not None:
                sums.maximum("value_error", (batch.values - batch.input_ids * batch.response_mask).abs().max())
        return sums, {"grad_norm": 2.0, "learning_rate": 0.5 / self.num_updates}

    @property
    def weight_value(self) -> float:
        return float(self.num_updates + self.context.seed)

    def export_weights(
        self, bucket_bytes: int, to: Collection[int] = (), whole: bool = True, merged: bool = True
    ) -> Iterator[WeightBucket]:
        value = self.weight_value
        weights = [("a", torch.full((5,), value, dtype=torch.bfloat16))]
        if whole:  # "b" is as if frozen, and its value that of the last update with it
            weights.append(("b", torch.full((40, 10), value)))
        weights.append((SENDER, torch.tensor([self.context.rank])))
        for bucket in fill_buckets(iter(weights), bucket_bytes):
            yield bucket if self.exports_weights or self.context.rank in to else []

    @property
    def exports_weights(self) -> bool:
        return self.context.rank == 0

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        sums = torch.tensor(values, dtype=torch.float64)
        if self.dp_size > 1:
            torch.distributed.all_reduce(sums)
        return sums.tolist()

    def save_checkpoint(self, directory: Path) -> None:
        (directory / f"rank{self.context.rank}").write_text(str(self.num_updates))

    def load_checkpoint(self, directory: Path) -> None:
        self.num_updates = int((directory / f"rank{self.context.rank}").read_text())

    def save_hf_model(self, directory: Path) -> None:
        (directory / "config.json").write_text("{}")


class FakeGenerateStrategy(GenerateStrategy):
    """Answers a prompt with its last token, counted up: prompt [.., 7] gives [8, 9, ...]. Special first tokens: 1000
    raises, 1001 kills the process, 1002 waits for abort. A weight `b` starts as 0. `num_gpus_per_worker` ranks read
    weights."""

    def __init__(self, role: WorkerConfig, context: RankContext):
        self.context = context
        self.version = 0
        self.weights: dict[str, torch.Tensor] = {}
        self.incoming: dict[str, torch.Tensor] | None = None
        self.aborted: dict[str, asyncio.Event] = {}
        self.in_flight: set[str] = set()
        self.receivers = [WeightReceiver(context.device, rank) for rank in range(role.num_gpus_per_worker)]
        self.senders: list[int] = []  # of the last update, by rank that read
        self.mood = ""
        self.moves: list[str] = []

    def setup(self) -> None:
        pass

    async def start(self) -> None:
        pass

    @property
    def policy_version(self) -> int:
        return self.version

    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        if request.request_id in self.in_flight:
            raise StrategyError(f"request {request.request_id} is in flight already")
        self.in_flight.add(request.request_id)
        try:
            answers = await self._answer(request)
        finally:
            self.in_flight.remove(request.request_id)
        if answered is not None:
            for index, answer in zip(request.samples, answers, strict=True):
                answered(index, answer)
        return answers

    async def _answer(self, request: GenerationRequest) -> list[Generation]:
        first, last = int(request.prompt_ids[0]), int(request.prompt_ids[-1])
        count, finish_reason = request.sampling.max_new_tokens, "length"
        if first == 1000:
            raise StrategyError("a prompt that starts with 1000")
        if first == 1001:
            os.kill(os.getpid(), 9)
        if first == 1002:
            await self.aborted.setdefault(request.request_id, asyncio.Event()).wait()
            count, finish_reason = 1, "abort"
        await asyncio.sleep(0.001)
        token_ids = np.arange(last + 1, last + 1 + count, dtype=np.int32)
        generation = Generation(
            token_ids, -token_ids.astype(np.float32), np.full(count, self.version, np.int32), finish_reason
        )
        return [generation] * request.num_samples

    async def abort(self, request_ids: Sequence[str] | None = None) -> None:
        for name in self.aborted if request_ids is None else request_ids:
            self.aborted.setdefault(name, asyncio.Event()).set()

    async def join_weight_group(self, group: GroupSpec, first_rank: int) -> None:
        await asyncio.gather(*(asyncio.to_thread(r.join, group, first_rank) for r in self.receivers))

    @property
    def num_weight_receivers(self) -> int:
        return len(self.receivers)

    async def begin_weight_update(self, whole: bool = True) -> None:
        if self.mood == "refuse":
            raise StrategyError("no update today")
        if self.mood == "die":
            os.kill(os.getpid(), 9)
        self.incoming = {} if whole else dict(self.weights)

    async def import_weights(self, source: BucketSource) -> None:
        def read(receiver: WeightReceiver) -> dict[str, torch.Tensor]:
            return {name: tensor.clone() for name, tensor in receiver.read(source)}

        assert self.incoming is not None
        if self.incoming and self.mood == "die midway":
            os.kill(os.getpid(), 9)
        read_by_rank = await asyncio.gather(*(asyncio.to_thread(read, receiver) for receiver in self.receivers))
        self.senders = [int(weights.pop(SENDER)) for weights in read_by_rank if SENDER in weights] or self.senders
        for weights in read_by_rank:
            self.incoming |= weights

    async def finish_weight_update(self, version: int) -> None:
        assert self.incoming is not None
        self.weights, self.incoming = self.incoming, None
        self.version = version

    def weight_sums(self) -> dict[str, float]:
        return {name: float(tensor.float().sum()) for name, tensor in self.weights.items()} | {"version": self.version}

    def offload_states(self, states: frozenset[State]) -> None:
        if self.mood == "die on leaving":
            os.kill(os.getpid(), 9)
        self.moves.append(move_text("offload", states))

    def load_states(self, states: frozenset[State]) -> None:
        if self.mood == "die on return":
            os.kill(os.getpid(), 9)
        self.moves.append(move_text("load", states))


class WatchedTrainWorker(TrainWorker):
    """A train worker whose strategy's doings can be looked at."""

    strategy: FakeTrainStrategy

    def take_moves(self) -> list[str]:
        moves, self.strategy.moves = self.strategy.moves, []
        return moves

    def weight_value(self) -> float:
        return self.strategy.weight_value

    def process_id(self) -> int:
        return os.getpid()


class WatchedGenerateWorker(GenerateWorker):
    """The same of an engine."""

    strategy: FakeGenerateStrategy

    def take_moves(self) -> list[str]:
        moves, self.strategy.moves = self.strategy.moves, []
        return moves

    def process_id(self) -> int:
        return os.getpid()

    def weight_sums(self) -> dict[str, float]:
        return self.strategy.weight_sums()

    def weight_senders(self) -> list[int]:
        return self.strategy.senders

    def num_in_flight(self) -> int:
        """Requests that the strategy works on."""
        return len(self.strategy.in_flight)

    def set_mood(self, mood: str) -> None:
        """How the next weight update goes: "refuse", "die" (at once), "die midway", or "" (well); or that it
        will "die on leaving" its devices, or "die on return"."""
        self.strategy.mood = mood


class MovingWorker:
    """A pool's worker that has states on a device."""

    def __init__(self) -> None:
        self.moves: list[str] = []

    def offload_states(self, states: frozenset[State]) -> None:
        self.moves.append(move_text("offload", states))

    def load_states(self, states: frozenset[State]) -> None:
        self.moves.append(move_text("load", states))

    def take_moves(self) -> list[str]:
        moves, self.moves = self.moves, []
        return moves


class TextReader:
    """Reads answers."""

    def length(self, texts: TextTable, row: int) -> int:
        return len(texts[row].response_text)


async def _raise(error: BaseException) -> None:
    raise error


class ToyJobWorker:
    """Runs jobs of several kinds: `wait` seconds, `block` the event loop, `die`, `fail` with a text, ask for `rest`.
    The result is the worker's name, and the most jobs it had at once."""

    def __init__(self, name: str):
        self.name = name
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.results: list[tuple[str, tuple[str, int]]] = []
        self.failures: list[tuple[str, str]] = []
        self.something: asyncio.Event | None = None
        self.background = BackgroundTasks()
        self.most = 0
        self.tired = False

    def submit(self, jobs: list[Job]) -> None:
        for job in jobs:
            self.tasks[job.job_id] = asyncio.create_task(self.run(job))

    async def run(self, job: Job) -> None:
        kind, *arguments = job.work
        self.most = max(self.most, len(self.tasks))
        try:
            await asyncio.sleep(0.05)
            if kind == "wait":
                await asyncio.sleep(arguments[0])
            if kind == "block":
                time.sleep(arguments[0])
            if kind == "die":
                os.kill(os.getpid(), 9)
            if kind == "fail":
                raise ValueError(arguments[0])
            if kind == "lose":  # a task that nobody awaits fails
                self.background.start(_raise(KeyboardInterrupt("as Ctrl-C")))
                await asyncio.sleep(1000)
            self.tired = kind == "rest"
            self.results.append((job.job_id, (self.name, self.most)))
        except asyncio.CancelledError:
            self.results.append((job.job_id, (self.name, self.most)))
        except ValueError as error:
            self.failures.append((job.job_id, f"ValueError: {error}"))
        finally:
            self.tasks.pop(job.job_id)
            self.event.set()

    @property
    def event(self) -> asyncio.Event:
        self.something = self.something or asyncio.Event()
        return self.something

    async def take_apart(self) -> tuple[FinishedJobs, None, None]:
        return await self.take(), None, None

    async def take(self) -> FinishedJobs:
        await self.event.wait()
        self.event.clear()
        results, self.results = self.results, []
        failures, self.failures = self.failures, []
        return FinishedJobs(tuple(results), tuple(failures), self.tired, counts={"done": len(results)})

    def heartbeat(self) -> None:
        pass

    def cancel(self, job_ids: list[str]) -> None:
        for job_id in job_ids:
            self.tasks[job_id].cancel()
