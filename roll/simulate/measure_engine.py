"""Measurement of a rollout engine's costs on this machine, with the run's own settings of it."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import numpy as np

from roll.configs.plan.batch_plan import BatchPlan
from roll.configs.plan.engine_limits import answers_at_once
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.rollout.generate_worker import GenerateWorker
from roll.distributed.strategy.table import strategy_class_path
from roll.errors import StrategyError
from roll.platforms.table import platform_here
from roll.types.rollout import GenerationRequest, SamplingParams

RUNNING = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 5
_MOST_TOKENS, _FEW_TOKENS, _MOST_PROMPT = 72, 8, 2048


def measure_engine(config: AlgorithmConfig, plan: BatchPlan) -> dict[str, Any]:
    """Costs of one engine, in this process: medians of rounds that take turns, so that a busy machine disturbs all
    alike. Raises StrategyError for an engine that does not start or answer."""
    return asyncio.run(_measure(config, plan))


async def _measure(config: AlgorithmConfig, plan: BatchPlan) -> dict[str, Any]:
    settings = config.actor_infer
    assert settings.strategy_name is not None
    path = strategy_class_path(settings.strategy_name, "generate")
    device = platform_here().device_name()
    blueprint = Blueprint("actor_infer", 0, 1, 0, config.seed, device, path, settings)
    most = answers_at_once(config.max_running_requests, settings, device != "cpu")
    engine = _Engine(GenerateWorker(blueprint, most))
    await engine.worker.setup()
    try:
        return await _costs(engine, plan, [n for n in RUNNING if n <= most])
    finally:
        await engine.worker.shutdown()


async def _costs(engine: _Engine, plan: BatchPlan, running: list[int]) -> dict[str, Any]:
    """Differences of two lengths leave out what a request costs beside its tokens."""
    long = max(2, min(plan.response_length, _MOST_TOKENS))
    short = max(1, min(_FEW_TOKENS, long // 4))
    prompt = max(2, min(plan.prompt_length, _MOST_PROMPT))
    seconds: dict[Any, list[float]] = {}
    for round_ in range(ROUNDS + 1):
        for count in running:
            for length in (short, long):
                seconds.setdefault((count, length), []).append(await engine.seconds(count, prompt // 2, length))
        for tokens in (prompt // 4 or 1, prompt):
            seconds.setdefault(("prefill", tokens), []).append(await engine.seconds(1, tokens, 1))
        if not round_:  # warms up
            seconds.clear()
    median = {what: statistics.median(durations) for what, durations in seconds.items()}
    steps = [(median[n, long] - median[n, short]) / (long - short) for n in running]
    rising = np.maximum.accumulate(np.maximum(steps, 1e-7)).tolist()
    few = prompt // 4 or 1
    costs: dict[str, Any] = {"decode_s": [[n, step] for n, step in zip(running, rising, strict=True)]}
    prefill = (median["prefill", prompt] - median["prefill", few]) / (prompt - few)
    if prefill > 0:  # else it is lost in the noise
        costs["prefill_tokens_per_s"] = 1 / prefill
    request = median[1, short] - short * rising[0] - prompt // 2 * max(prefill, 0.0)
    return costs | {"answer_s": max(0.0, request)}


class _Engine:
    def __init__(self, worker: GenerateWorker):
        self.worker = worker
        self._random = np.random.default_rng(0)
        self._number = 0

    async def seconds(self, num_answers: int, prompt: int, length: int) -> float:
        """Seconds for `num_answers` responses of this length, to as many new prompts."""
        requests = [self._request(prompt, length) for _ in range(num_answers)]
        started, num_open = time.perf_counter(), num_answers
        self.worker.submit(requests)
        while num_open:
            for _, result in (await self.worker.take()).unpack():
                if isinstance(result, str):
                    raise StrategyError(f"the engine refuses to be measured: {result}")
                num_open -= 1
        return time.perf_counter() - started

    def _request(self, prompt: int, length: int) -> GenerationRequest:
        self._number += 1
        tokens = self._random.integers(4, 30, prompt).astype(np.int32)
        sampling = SamplingParams(length, min_new_tokens=length, ignore_eos=True, seed=self._number)
        return GenerationRequest(f"measured-{self._number}", tokens, sampling)
