"""A hundred sessions that are ended amid their requests, as SIGTERM ends them: nothing hangs, nothing is trained
twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from roll.pipeline.agentic.episode import Counts, EpisodeJob
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.endpoint.session import Session
from roll.pipeline.agentic.proxy.player import ProgramPlayer
from roll.pipeline.agentic.proxy.programs.programs import Ended
from roll.types.rollout import Trajectory
from tests.unit.pipeline.agentic.proxy.parts import ENCODER, JOB, Engine, check_rows, proxy_rules, until

NUM_SESSIONS = 100


class InProcess(ProgramPlayer):
    """Plays each program as a coroutine here: three requests, every other program with two of them at once."""

    def __init__(self, endpoint: Endpoint, logs: Path, client: httpx.AsyncClient):
        super().__init__(proxy_rules(), endpoint, logs)
        self._client = client
        self.urls: list[str] = []

    async def _until_over(self, job: EpisodeJob, attempt: int, session: Session, task: Mapping[str, Any]) -> Ended:
        places = self._endpoint.environment(session)
        self.urls.append(places["OPENAI_BASE_URL"])

        async def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
            headers = {"Authorization": f"Bearer {places['OPENAI_API_KEY']}"}
            url = f"{places['OPENAI_BASE_URL']}/chat/completions"
            reply = await self._client.post(url, json={"messages": messages}, headers=headers)
            return reply.raise_for_status().json()["choices"][0]["message"]

        messages: list[dict[str, Any]] = [{"role": "user", "content": f"number {job.index}"}]
        messages += [await ask(messages), {"role": "user", "content": "on"}]
        await asyncio.gather(*(ask(messages) for _ in range(1 + job.index % 2)))
        return Ended(0, float(job.index), "")


def test_sessions_that_are_ended_amid_requests_leave_nothing_and_are_played_anew(tmp_path: Path) -> None:
    engine = Engine(ENCODER, lambda number: f"answer {number}")
    jobs = [replace(JOB, index=index, group_id=index // 8) for index in range(NUM_SESSIONS)]

    async def run() -> list[list[Trajectory]]:
        endpoint = Endpoint(ENCODER, engine)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(trust_env=False, timeout=60, limits=limits) as client:
            player = InProcess(endpoint, tmp_path, client)
            plays = [asyncio.create_task(player.play(job, Counts())) for job in jobs]
            await until(lambda: len(engine.sent) >= NUM_SESSIONS)
            engine.gate = asyncio.Event()  # what is asked from here on is in flight until the end
            await until(lambda: len(engine.requests) - len(engine.sent) >= NUM_SESSIONS // 4)
            for play in plays:
                play.cancel()
            ended = await asyncio.wait_for(asyncio.gather(*plays, return_exceptions=True), 30)
            finished = [rows for rows in ended if isinstance(rows, list)]
            assert len(finished) < NUM_SESSIONS, "some were amid a request"
            old, num_begun = set(player.urls), len(engine.sent)
            assert all(endpoint.find(url.split("/")[-2]) is None for url in old), "no key opens an ended session"
            engine.gate.set()
            await asyncio.sleep(0.1)
            assert len(engine.sent) == num_begun, "a request of an ended session went on"
            engine.gate = None
            done = {rows[0].index for rows in finished}
            again = [player.play(job, Counts()) for job in jobs if job.index not in done]
            played = [*finished, *await asyncio.wait_for(asyncio.gather(*again), 60)]
            assert len(set(player.urls)) == len(player.urls) == NUM_SESSIONS + len(again) and old < set(player.urls)
        await endpoint.stop()
        return played

    episodes = asyncio.run(run())
    assert sorted(rows[0].index for rows in episodes) == list(range(NUM_SESSIONS))
    assert all(row.failure is None and row.reward == row.index for rows in episodes for row in rows)
    rows = [row for rows in episodes for row in rows]
    check_rows(rows, engine, sum(int(row.response_mask.sum()) for row in rows))
    trained = Counter(version for row in rows for version in set(row.policy_versions[row.response_mask].tolist()))
    assert max(trained.values()) == 1, "an answer was trained in two rows"
    assert len(trained) == 2 * NUM_SESSIONS + NUM_SESSIONS // 2, "each answer of an episode that counts is trained"
