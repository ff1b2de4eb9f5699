"""The worker process's side: every episode's result is handed over once, whenever `take` is called."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from roll.distributed.executor.pools.job_pool import Job
from roll.distributed.executor.rollout.engine_client import RETRIED_REQUESTS
from roll.pipeline.agentic.env_manager.chat import ChatEncoder
from roll.pipeline.agentic.env_worker import EnvWorker
from roll.types.rollout import Generation, GenerationRequest
from tests.unit.agentic.parts import GO, Script, job
from tests.unit.agentic.test_config import config


class Engines:
    """Answers after a delay that differs from request to request."""

    def __init__(self, tokenizer: Any):
        self.script = Script(ChatEncoder(tokenizer), [GO])
        self.count = 0
        self.num_retries = 0

    async def generate(self, request: GenerationRequest) -> list[Generation]:
        self.count += 1
        self.num_retries += self.count % 5 == 0
        await asyncio.sleep(0.003 * (self.count % 7))
        return await self.script(request)


def test_no_result_is_lost_between_takes(tiny_tied_model_dir: Path, tiny_tokenizer: Any) -> None:
    made = config(
        pretrain=str(tiny_tied_model_dir),
        custom_envs={"Corridor": {"env_type": "tests.unit.agentic.parts:Corridor", "max_tokens_per_step": 16}},
        train_env_manager={"num_env_groups": 4, "group_size": 8, "tags": ["Corridor"]},
        val_env_manager=None,
    )

    async def play() -> tuple[dict[str, Any], int]:
        engines, num_retries = Engines(tiny_tokenizer), 0
        worker = EnvWorker(made, engines)  # type: ignore[arg-type]
        jobs = [job(seed=i, index=i) for i in range(40)]
        worker.submit([Job(j.name, j, 10.0) for j in jobs])
        worker.cancel([jobs[7].name])
        results: dict[str, Any] = {}
        num_takes = 0
        while len(results) < 40:
            finished = await asyncio.wait_for(worker.take(), 60)
            results |= dict(finished.results)
            num_retries += finished.counts[RETRIED_REQUESTS]
            num_takes += 1
        assert num_retries == engines.num_retries > 0
        return results, num_takes

    results, num_takes = asyncio.run(play())
    assert num_takes > 1
    assert results.pop(job(index=7).name) is None
    assert all(rows[0].reward == 1.5 for rows in results.values())
