"""What a request of an agent costs at the endpoint, over what engines take: CPU, waiting and its fairness, memory.

    python benchmarks/agent_sessions.py [--sessions 500] [--turns 10] [--history 4000] [--rounds 4] [--at_once 500]

An engine that answers at once stands behind the endpoint; programs in another process hold conversations that grow to
`history` tokens in `turns` requests. CPU is that of the process that serves, divided by its requests; the time that the
engine itself takes is subtracted. With --drops every program drops an answer amid its conversation, so that each later
request is rendered and tokenised as a whole.

A row is printed after 1, 2, 4 ... rounds of all sessions. `wait_p99`, `wait_max`: times of a request over the median;
`session_max`: time of the slowest session over the mean. `rss`: memory over that after the first round, in which a
process fills what it keeps; `kept`: the same of the number of Python's objects.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import httpx
import numpy as np
import psutil

from roll.envs.config import EnvConfig
from roll.models.tiny import build_tokenizer
from roll.pipeline.agentic.episode import Counts, EpisodeJob, EpisodeRules
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.sample_forms import ChatEncoder
from roll.types.rollout import Generation, GenerationRequest, SamplingParams

ANSWER = "I have read it and go on with the next part."


class Engine:
    """Answers at once with the same tokens; `cpu_s` is what that took."""

    def __init__(self, encoder: ChatEncoder):
        self._ids = encoder.encode(ANSWER + "<|im_end|>")
        self.cpu_s = 0.0

    async def __call__(self, request: GenerationRequest) -> list[Generation]:
        begin = time.process_time()
        count = len(self._ids)
        made = [Generation(self._ids, np.zeros(count, np.float32), np.zeros(count, np.int32), "stop")]
        self.cpu_s += time.process_time() - begin
        return made


def play(connection: Connection, given: argparse.Namespace) -> None:
    """The programs of a round after the other: gets (base_url, key) of every session, says the waiting times."""
    while (sessions := connection.recv()) is not None:
        connection.send(asyncio.run(_round(sessions, given)))


async def _round(sessions: list[tuple[str, str]], given: argparse.Namespace) -> list[list[float]]:
    """The waiting times of every session. All of them begin at once, `at_once` at a time."""
    waits: list[list[float]] = []
    limit, words = asyncio.Semaphore(given.at_once), given.history // given.turns // 2
    async with httpx.AsyncClient(
        timeout=600, trust_env=False, limits=httpx.Limits(max_connections=None, max_keepalive_connections=None)
    ) as client:

        async def program(url: str, key: str) -> None:
            messages: list[dict[str, Any]] = []
            mine: list[float] = []
            waits.append(mine)
            async with limit:
                for turn in range(given.turns):
                    messages.append({"role": "user", "content": f"{turn} " + "7 " * words})
                    begin = time.perf_counter()
                    headers = {"authorization": f"Bearer {key}"}
                    body = {"messages": messages}
                    reply = await client.post(f"{url}/chat/completions", json=body, headers=headers)
                    mine.append(time.perf_counter() - begin)
                    messages.append(reply.raise_for_status().json()["choices"][0]["message"])
                    if given.drops and turn == 1:
                        messages[1] = {"role": "assistant", "content": "(left out)"}

        await asyncio.gather(*(program(*session) for session in sessions))
    return waits


async def serve(connection: Connection, given: argparse.Namespace) -> list[dict[str, float]]:
    """A row of measures for every round."""
    encoder = ChatEncoder(build_tokenizer())
    engine = Engine(encoder)
    endpoint = Endpoint(encoder, engine)
    await endpoint.start()
    config = EnvConfig.model_validate({"env_type": "program", "env_manager_cls": "proxy", "max_steps": 10_000})
    rules = EpisodeRules(config, SamplingParams(64), 8 * given.history, 64, 0.0, 0, None, None, 0)
    rows: list[dict[str, float]] = []
    process, first = psutil.Process(), (0.0, 0.0)
    for number in range(1, given.rounds + 1):
        jobs = [EpisodeJob("Tag", index, "train", number, index) for index in range(given.sessions)]
        sessions = [endpoint.open(job, 0, rules, Counts(), {}) for job in jobs]
        begin, engine.cpu_s, wall = time.process_time(), 0.0, time.perf_counter()
        connection.send([(endpoint.environment(one)["OPENAI_BASE_URL"], one.key) for one in sessions])
        waits = np.array(await asyncio.to_thread(connection.recv))
        cpu_s = time.process_time() - begin - engine.cpu_s
        wall = time.perf_counter() - wall
        assert all(one.num_answers == given.turns for one in sessions)
        while sessions:
            await endpoint.close(sessions.pop())
        gc.collect()
        memory = process.memory_info().rss / 2**20, float(len(gc.get_objects()))
        first = memory if number == 1 else first
        median, each = float(np.median(waits)), waits.sum(1)
        if number & (number - 1) == 0:
            rows.append({
                "rounds": number,
                "cpu_ms": 1000 * cpu_s / waits.size,
                "per_s": waits.size / wall,
                "p50_ms": 1000 * median,
                "wait_p99": float(np.percentile(waits, 99)) / median,
                "wait_max": float(waits.max()) / median,
                "session_max": float(each.max() / each.mean()),
                "rss_mb": memory[0],
                "rss": memory[0] / first[0],
                "kept": memory[1] / first[1],
            })  # fmt: skip
    await endpoint.stop()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--history", type=int, default=4000, help="tokens of a whole conversation, about")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--at_once", type=int, default=500, help="sessions that play at the same time")
    parser.add_argument("--drops", action="store_true", help="programs drop an earlier answer")
    given = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    programs = multiprocessing.get_context("spawn").Process(target=play, args=(theirs, given), daemon=True)
    programs.start()
    theirs.close()  # so that the end of the programs is one of the pipe
    for row in asyncio.run(serve(ours, given)):
        print(json.dumps({name: round(value, 2) for name, value in row.items()}))
    ours.send(None)
    programs.join(10)


if __name__ == "__main__":
    main()
