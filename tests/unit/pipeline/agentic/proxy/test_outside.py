"""Programs that run elsewhere: they take sessions at the front of the run, which two workers serve."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from roll.pipeline.agentic.episode import EpisodeJob
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.outside.front import FILE, Front
from roll.pipeline.agentic.proxy.outside.line import Line
from roll.pipeline.agentic.proxy.player import OutsidePlayer
from roll.types.rollout import Trajectory
from tests.unit.pipeline.agentic.proxy.parts import ASK, ENCODER, Engine, check_rows, proxy_rules, until

T = TypeVar("T")
Rows = list[Trajectory]


class Service:
    """A front, its workers, and a client with the run's token."""

    def __init__(self, folder: Path, idle_timeout_s: float, listen: str, **rules: Any):
        self.folder, self.idle_timeout_s = folder, idle_timeout_s
        self.front = Front(listen, folder)
        self.engine = Engine(ENCODER, lambda number: f"answer {number}")
        self.rules = replace(proxy_rules(agent=None, **rules), episode_timeout_s=60.0, retries=1)
        self.endpoints: list[Endpoint] = []
        self.players: list[OutsidePlayer] = []
        self.running: list[asyncio.Task[Rows]] = []
        self.url = self.token = ""
        self.client = httpx.AsyncClient(timeout=60, trust_env=False)

    async def start(self) -> None:
        address = await self.front.start("127.0.0.1")
        told = json.loads((self.folder / FILE).read_text())
        self.url, self.token = told["url"], told["token"]
        for number in range(2):
            endpoint = Endpoint(ENCODER, self.engine)
            line = Line(endpoint, address, self.idle_timeout_s)
            self.endpoints.append(endpoint)
            self.players.append(OutsidePlayer(self.rules, endpoint, self.folder / f"logs{number}", line))

    def play(self, group: int, index: int, worker: int = 0, purpose: str = "train") -> asyncio.Task[Rows]:
        job = EpisodeJob("Outside", 10 + group, purpose, group, index)
        self.running.append(asyncio.create_task(self.players[worker].play(job)))
        return self.running[-1]

    def num_waiting(self) -> int:
        """Sessions of which the front has heard."""
        return sum(len(report.waiting) for report, _ in self.front._workers.values())

    async def ask(self, **body: Any) -> httpx.Response:
        body = {"wait_s": 20} | body
        return await self.client.post(f"{self.url}/sessions", json=body, headers=bearer(self.token))

    async def taken(self, **body: Any) -> dict[str, Any]:
        reply = await self.ask(**body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def say(self, session: dict[str, Any]) -> str:
        body, headers = {"model": "m", "messages": ASK}, bearer(session["api_key"])
        reply = await self.client.post(f"{session['base_url']}/chat/completions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]["message"]["content"]

    async def reward(self, session: dict[str, Any], value: float, **more: Any) -> httpx.Response:
        url = f"{self.url}/sessions/{session['session']}/reward"
        return await self.client.post(url, json={"reward": value, **more}, headers=bearer(session["api_key"]))

    async def stop(self) -> None:
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)
        await self.client.aclose()
        await self.front.stop()
        for endpoint in self.endpoints:
            await endpoint.stop()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def serve(
    folder: Path,
    play: Callable[[Service], Coroutine[Any, Any, T]],
    idle_timeout_s: float = 600,
    listen: str = "127.0.0.1:0",
    **rules: Any,
) -> T:
    async def run() -> T:
        service = Service(folder, idle_timeout_s, listen, **rules)
        await service.start()
        try:
            return await asyncio.wait_for(play(service), 120)
        finally:
            await service.stop()

    return asyncio.run(run())


def test_a_program_takes_a_session_plays_it_and_gives_its_reward(tmp_path: Path) -> None:
    async def play(service: Service) -> None:
        episode = service.play(group=3, index=1)
        session = await service.taken()
        assert session["task"] == {"seed": 13} and session["tag"] == "Outside" and session["purpose"] == "train"
        assert session["base_url"].startswith(service.url), "through the front, not at the worker's own port"
        assert await service.say(session) == "answer 0"
        task = await service.client.get(f"{session['base_url']}/task", headers=bearer(session["api_key"]))
        assert task.json() == {"seed": 13}
        assert (await service.reward(session, 0.5, metrics={"won": 1})).status_code == 200
        rows = await episode
        assert rows[0].reward == 0.5 and rows[0].metrics["won"] == 1 and rows[0].failure is None and rows[0].index == 1
        check_rows(rows, service.engine, len(service.engine.sent[0]) - len(service.engine.requests[0].prompt_ids))
        # A reward that was not acknowledged is sent again; another one is refused.
        assert (await service.reward(session, 0.5, metrics={"won": 1})).status_code == 200
        again = await service.reward(session, 1.0)
        assert again.status_code == 400 and again.json()["error"]["code"] == "reward_given"
        late = await service.client.post(
            f"{session['base_url']}/chat/completions", json={"messages": ASK}, headers=bearer(session["api_key"])
        )
        assert late.status_code == 410

    serve(tmp_path, play)


def test_nothing_waits_and_the_token_is_needed(tmp_path: Path) -> None:
    async def play(service: Service) -> None:
        none = await service.ask(wait_s=0)
        assert none.status_code == 204 and none.headers["Retry-After"]
        for key in ("none", "wrong", service.token[:-1]):
            reply = await service.client.post(f"{service.url}/sessions", json={}, headers=bearer(key))
            assert reply.status_code == 401 and service.token not in reply.text
        service.play(0, 0)
        session = await service.taken()
        # The token opens no session, and no session's key takes another; both ways in ask for the same key.
        for key in (service.token, "roll-x-y", session["api_key"][:-1]):
            reply = await service.client.post(
                f"{session['base_url']}/chat/completions", json={"messages": ASK}, headers=bearer(key)
            )
            assert reply.status_code == 401
        headers = bearer(session["api_key"])
        assert (await service.client.post(f"{service.url}/sessions", json={}, headers=headers)).status_code == 401
        assert (await service.client.post(f"{service.url}/workers", json={}, headers=headers)).status_code == 401
        bare = await service.client.post(f"{service.url}/v1/chat/completions", json={"messages": ASK}, headers=headers)
        assert bare.status_code == 200, "by the key alone"
        worker = service.endpoints[0].url
        for route in ("/line/take", "/sessions"):
            assert (await service.client.post(f"{worker}{route}", json={"session": "x"})).status_code in (401, 404)

    serve(tmp_path, play)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_the_token_of_a_run_stays_when_it_is_started_again(tmp_path: Path) -> None:
    async def token(service: Service) -> str:
        return service.token

    assert serve(tmp_path, token) == serve(tmp_path, token)


def test_sessions_are_taken_in_the_order_of_their_groups_over_all_workers(tmp_path: Path) -> None:
    async def play(service: Service) -> list[int]:
        for group, index in ((2, 0), (1, 1), (1, 0), (2, 1)):
            service.play(group, index, worker=(group + index) % 2)
        await until(lambda: service.num_waiting() == 4)
        validation = service.play(7, 0, purpose="val")
        await until(lambda: service.num_waiting() == 5)
        taken = [await service.taken() for _ in range(5)]
        assert taken[0]["purpose"] == "val" and not validation.done()
        return [session["task"]["seed"] for session in taken[1:]]

    assert serve(tmp_path, play) == [11, 11, 12, 12]


def test_a_reward_needs_an_answer_and_an_open_session(tmp_path: Path) -> None:
    async def play(service: Service) -> None:
        service.play(0, 0)
        session = await service.taken()
        early = await service.reward(session, 1.0)
        assert early.status_code == 400 and early.json()["error"]["code"] == "no_answer"
        await service.say(session)
        url, headers = f"{service.url}/sessions/{session['session']}", bearer(session["api_key"])
        assert (await service.client.delete(url, headers=headers)).status_code == 200
        assert (await service.reward(session, 1.0)).status_code == 410

    serve(tmp_path, play)


@pytest.mark.parametrize("listen", ["[::1]:0", "[::]:0", "0.0.0.0:0"])
def test_addresses_are_those_that_programs_and_workers_reach(tmp_path: Path, listen: str) -> None:
    openai = pytest.importorskip("openai", reason="the SDK of OpenAI is not installed")
    host = "[::1]" if "::1" in listen else "127.0.0.1"  # what stands for every interface is no address

    async def play(service: Service) -> None:
        assert service.url.startswith(f"http://{host}:")
        episode = service.play(0, 0)
        session = await service.taken()
        assert session["base_url"].startswith(f"http://{host}:")
        client = openai.AsyncOpenAI(base_url=session["base_url"], api_key=session["api_key"])
        reply = await client.chat.completions.create(model="m", messages=ASK)
        assert reply.choices[0].message.content == "answer 0"
        await client.close()
        assert (await service.reward(session, 0.5)).status_code == 200
        assert [row.reward for row in await episode] == [0.5]

    try:
        serve(tmp_path, play, listen=listen)
    except OSError as error:
        pytest.skip(f"no such address here: {error}")


def test_a_program_that_falls_silent_or_gives_up_has_its_session_played_anew(tmp_path: Path) -> None:
    async def play(service: Service) -> None:
        episode = service.play(0, 0)
        silent = await service.taken()
        second = await service.taken()
        assert second["session"] != silent["session"], "the first was left"
        gone = await service.client.delete(
            f"{service.url}/sessions/{second['session']}", headers=bearer(second["api_key"])
        )
        assert gone.status_code == 200
        (row,) = await episode
        assert row.failure is not None and "gave the session up" in row.failure
        assert (await service.reward(silent, 1.0)).status_code == 410

    serve(tmp_path, play, idle_timeout_s=1.5)


def test_a_worker_that_dies_loses_its_sessions_and_nothing_waits_for_ever(tmp_path: Path) -> None:
    async def play(service: Service) -> None:
        service.play(0, 0)
        other = service.play(1, 0, worker=1)
        await until(lambda: service.num_waiting() == 2)
        session = await service.taken()
        service.running[0].cancel()
        await service.endpoints[0].stop()
        reply = await service.client.post(
            f"{session['base_url']}/chat/completions", json={"messages": ASK}, headers=bearer(session["api_key"])
        )
        assert reply.status_code == 410 and reply.json()["error"]["code"] == "session_lost"
        following = await service.taken()
        await service.say(following)
        await service.reward(following, 1.0)
        assert (await other)[0].reward == 1.0

    serve(tmp_path, play)


def test_streams_pass_the_front_as_they_are(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai", reason="the SDK of OpenAI is not installed")

    async def play(service: Service) -> None:
        episode = service.play(0, 0)
        session = await service.taken()
        async with openai.AsyncOpenAI(base_url=session["base_url"], api_key=session["api_key"]) as client:
            stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
            with pytest.raises(openai.BadRequestError) as error:
                await client.chat.completions.create(model="m", messages=[])
        assert text == "answer 0" and error.value.param == "messages"
        await service.reward(session, 0.0)
        assert (await episode)[0].reward == 0.0

    serve(tmp_path, play)


def test_the_end_of_the_run_is_told_to_those_that_wait_for_a_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(service: Service) -> None:
        waits = [asyncio.create_task(service.ask(wait_s=60)) for _ in range(3)]
        await asyncio.sleep(0.5)
        await service.front.stop()
        for reply in await asyncio.gather(*waits):
            assert reply.status_code == 410 and reply.json()["error"]["code"] == "run_over"

    serve(tmp_path, play)
    assert "Traceback" not in caplog.text
