"""The worker process's side: every episode's result is handed over once, whenever `take` is called."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from roll.distributed.executor.pools.job import FinishedJobs, Job
from roll.distributed.executor.rollout.engine_client import RETRIED_REQUESTS
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.pipeline.agentic.env_worker import EnvWorker, Players
from roll.pipeline.agentic.episode import AbortedEpisode
from roll.pipeline.agentic.proxy.tool_player import ToolPlayer
from roll.pipeline.agentic.sample_forms import ChatEncoder
from roll.types.batch import SampledRows
from roll.types.collate import placed, split_rows
from roll.types.group_codec import TextTable
from roll.types.rollout import Generation, GenerationRequest, StoredRow
from tests.unit.pipeline.agentic.parts import GO, Script, job
from tests.unit.pipeline.agentic.test_config import config


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


def corridor_config(model: Path) -> AgenticConfig:
    return config(
        pretrain=str(model),
        custom_envs={"Corridor": {"env_type": "tests.unit.pipeline.agentic.parts:Corridor", "max_tokens_per_step": 16}},
        train_env_manager={"num_env_groups": 4, "group_size": 8, "tags": ["Corridor"]},
        val_env_manager=None,
    )


def test_no_result_is_lost_between_takes(tiny_tied_model_dir: Path, tiny_tokenizer: Any) -> None:
    made = corridor_config(tiny_tied_model_dir)

    async def play() -> tuple[dict[str, Any], int]:
        engines, num_retries = Engines(tiny_tokenizer), 0
        worker = EnvWorker(made, None, engines)  # type: ignore[arg-type]
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
    assert results.pop(job(index=7).name) == AbortedEpisode(0)
    assert all(rows[0].reward == 1.5 for rows in results.values())


def test_of_many_tokens_come_facts_and_apart_from_them_the_rows_and_their_texts(
    tiny_tied_model_dir: Path, tiny_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = corridor_config(tiny_tied_model_dir)

    async def play(num_direct: int) -> tuple[FinishedJobs, SampledRows | None, TextTable | None]:
        monkeypatch.setattr("roll.pipeline.agentic.env_worker.DIRECT_TOKENS", num_direct)
        worker = EnvWorker(made, None, Engines(tiny_tokenizer))  # type: ignore[arg-type]
        worker.submit([Job("one", job(), 10.0), Job("two", job(index=1), 10.0)])
        await asyncio.wait_for(asyncio.gather(*worker._tasks.values()), 60)
        worker._something.set()
        return await asyncio.wait_for(worker.take_apart(), 60)

    whole, no_rows, no_texts = asyncio.run(play(10_000))
    assert no_rows is no_texts is None
    finished, rows, texts = asyncio.run(play(10))
    assert rows is not None and texts is not None and len(rows) == len(texts)
    played, known = dict(whole.results), dict(finished.results)
    placed_rows = [row for name in known for row in placed(known[name], ("rows", "texts")) or ()]
    wanted = [row for name in known for row in played[name]]
    for row, (found, want, fields_of) in enumerate(zip(placed_rows, wanted, split_rows(rows), strict=True)):
        said = texts[row]
        assert found.content == StoredRow("rows", "texts", row, want.facts)
        assert found.facts == want.facts and found.metrics == want.metrics and found.reward == want.reward
        assert found.turn_rewards is not None and found.turn_rewards.tolist() == want.turn_rewards.tolist()
        assert (said.response_text, said.turns) == (want.response_text, want.turns)
        for name in ("input_ids", "response_mask", "log_probs", "policy_versions"):
            assert fields_of[name].tolist() == getattr(want, name).tolist()


def test_training_and_validation_share_the_tool_servers_of_a_tag(tiny_tokenizer: Any) -> None:
    servers = {"files": {"command": "cat"}}
    keys = {"env_manager_cls": "tools", "tool_servers": servers, "answer_key": "answer", "max_env_step_concurrent": 1}
    made = config(custom_envs__Lake=keys, custom_envs__Guess=keys)
    players = Players(made, ChatEncoder(tiny_tokenizer), Engines(tiny_tokenizer).generate)
    trained, validated, other = (
        players._make(tag, purpose) for tag, purpose in (("Lake", "train"), ("Lake", "validation"), ("Guess", "train"))
    )
    assert isinstance(trained, ToolPlayer) and isinstance(validated, ToolPlayer) and isinstance(other, ToolPlayer)
    assert trained._servers is validated._servers is not other._servers
    assert trained._turnstile is validated._turnstile is not other._turnstile
    assert validated._rules.sampling.temperature == 0
