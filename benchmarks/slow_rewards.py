"""What a slow reward adds to the rollout of a step.

    python benchmarks/slow_rewards.py [--processes 64 24] [--rounds 10]

128 groups of 16 answers, log-normal lengths with a part common to a group and one per answer (median 2200, mean about
3300, cap 16384 tokens), all sampled at once at 10 ms a token, and a reward of 2 s in so many processes. Answers go the
way of a run, through the queue of an engine's process (`GenerateWorker`), `EngineClient` and `PromptRollouter`, but for
Ray, on a virtual clock: a busy machine changes nothing. Four ways with the same lengths, new ones in each round, and
what would be the best one:

    none      no reward
    each      an answer is scored as soon as it is there
    together  the answers of a group are scored when all are there, in as many processes as are free
    one call  the same in one process, one after the other
    bound     what no way beats: a process that is free takes any answer that is there

Of each the median over the rounds of its seconds, and of its seconds over those of `none` in the same round, with the
quartiles; and the CPU time of this process for an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import inspect
import json
import statistics
import sys
import time
from collections.abc import Sequence
from heapq import heapreplace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1]))

from synthetic_strategies import SyntheticEngine

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.rollout.engine_client import EngineClient
from roll.distributed.executor.rollout.generate_worker import GenerateWorker
from roll.pipeline.rlvr.prompt_rollouter import PromptRollouter, request_seed
from roll.rewards.base import RewardInput, RewardOutcome
from roll.types.rollout import Answered, Generation, GenerationRequest, Place, SamplingParams, Task
from tests.helpers.virtual_time import run_virtually

NUM_GROUPS, GROUP_SIZE = 128, 16
TOKEN_S, REWARD_S = 0.01, 2.0
MEDIAN, CAP, COMMON, OWN = 2200, 16384, 0.75, 0.58
WAYS = ("none", "each", "together", "one call")


def sampling_seconds(seed: int | None) -> np.ndarray:
    """Of the answers of a group."""
    random = np.random.default_rng(seed)
    drawn = MEDIAN * np.exp(COMMON * random.standard_normal() + OWN * random.standard_normal(GROUP_SIZE))
    return TOKEN_S * np.minimum(drawn, CAP)


def bound(processes: int, number: int) -> float:
    """Seconds of a rollout whose rewards never wait for anything but a process."""
    seeds = [request_seed(number, "train", group) for group in range(NUM_GROUPS)]
    free, end = [0.0] * processes, 0.0
    for there in sorted(second for seed in seeds for second in sampling_seconds(seed)):
        end = max(there, heapreplace(free, max(there, free[0]) + REWARD_S)) + REWARD_S
    return end


class Clock(SyntheticEngine):
    """Answers take as long as they are; of their tokens there is one."""

    async def generate(self, request: GenerationRequest, answered: Answered | None = None) -> list[Generation]:
        sampling_s = sampling_seconds(request.sampling.seed)

        async def answer(index: int) -> Generation:
            await asyncio.sleep(sampling_s[index])
            generation = Generation(np.ones(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32), "stop")
            if answered is not None:
                answered(index, generation)
            return generation

        return list(await asyncio.gather(*map(answer, request.samples)))


class Process:
    """The engine's process, as Ray would reach it."""

    def __init__(self, worker: GenerateWorker):
        self.worker, self.call = worker, self

    def remote(self, method: str, *arguments: object) -> asyncio.Future[Any]:
        async def run() -> object:
            reply = getattr(self.worker, method)(*map(copy.copy, arguments))  # as they arrive there
            return await reply if inspect.isawaitable(reply) else reply

        return asyncio.ensure_future(run())


class Rewards:
    """A pool of processes in which scoring an answer takes `REWARD_S`."""

    def __init__(self, way: str, processes: int):
        self._way, self._free = way, asyncio.Semaphore(processes)

    def scores_alone(self, domain: str) -> bool:
        return self._way == "each"

    async def score(self, domain: str, inputs: list[RewardInput], places: Sequence[Place] = ()) -> list[RewardOutcome]:
        if self._way == "one call":
            await self._work(REWARD_S * len(inputs))
        elif self._way != "none":
            await asyncio.gather(*(self._work(REWARD_S) for _ in inputs))
        return [RewardOutcome(1.0)] * len(inputs)

    async def _work(self, seconds: float) -> None:
        async with self._free:
            await asyncio.sleep(seconds)


async def step(way: str, processes: int, number: int) -> float:
    """Seconds of one rollout."""
    started = asyncio.get_running_loop().time()
    worker = GenerateWorker(Blueprint("actor_infer", 0, 1, 0, 0, "cpu", "slow_rewards:Clock", WorkerConfig()))
    await worker.setup()
    client = EngineClient(SimpleNamespace(handles=[Process(worker)], role="actor_infer"))  # type: ignore[arg-type]
    rollouter = PromptRollouter(
        Rewards(way, processes), lambda ids: [""] * len(ids), SamplingParams(CAP), GROUP_SIZE, seed=number
    )
    task = Task("t", "math", np.array([1], np.int32))
    await asyncio.gather(*(rollouter.run_group(task, group, 0, client.generate) for group in range(NUM_GROUPS)))
    seconds = asyncio.get_running_loop().time() - started
    await worker.shutdown()
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", nargs="+", type=int, default=[64, 24])
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(arguments)
    for processes in options.processes:
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        cpu_s: dict[str, float] = dict.fromkeys(WAYS, 0.0)
        for number in range(options.rounds):
            for way in WAYS:
                started = time.process_time()
                seconds[way].append(run_virtually(step(way, processes, number)))
                cpu_s[way] += time.process_time() - started
        seconds["bound"] = [bound(processes, number) for number in range(options.rounds)]
        for way, found in seconds.items():
            ratios = np.array(found) / np.array(seconds["none"])
            low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75]).round(3).tolist()
            row = {"processes": processes, "way": way, "s": round(statistics.median(found), 1), "x none": middle}
            each_ms = 1000 * cpu_s.get(way, 0.0) / (options.rounds * NUM_GROUPS * GROUP_SIZE)
            print(json.dumps({**row, "quartiles": [low, high], "CPU ms per answer": round(each_ms, 3)}), flush=True)


if __name__ == "__main__":
    main()
