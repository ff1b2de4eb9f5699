"""Requests of today's clients: what changes nothing is ignored, what cannot be honoured is refused by its field."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.unit.pipeline.agentic.proxy.parts import ENCODER, Place, serve

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("requests.yaml").read_text(encoding="utf-8"))
PLAIN: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "box F?"}]},
    "/responses": {"input": "box F?"},
    "/messages": {"messages": [{"role": "user", "content": "box F?"}], "max_tokens": 9},
}


async def post(place: Place, route: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"x-api-key": place.session.key}
    async with httpx.AsyncClient(trust_env=False, headers=headers, timeout=60) as client:
        return await client.post(place.variables["OPENAI_BASE_URL"] + route, json=body)


@pytest.mark.parametrize("case", CASES, ids=[f"{case['client']}-{case.get('refused', 'ok')}" for case in CASES])
def test_a_request_of_a_client_is_answered_or_refused_by_its_field(case: dict[str, Any]) -> None:
    async def play(place: Place) -> None:
        reply = await post(place, case["route"], case["body"])
        if (field := case.get("refused")) is not None:
            assert reply.status_code == 400 and field in reply.text and not place.engine.requests
            return
        assert reply.status_code == 200, reply.text
        (request,) = place.engine.requests
        prompt = ENCODER.show(request.prompt_ids)
        assert case["shows"] in prompt and "cache_control" not in prompt and "billing" not in prompt
        assert not place.session.num_refused

    serve(["yes"], play)


@pytest.mark.parametrize("route", PLAIN)
def test_a_field_that_nobody_knows_changes_nothing_and_is_said_once(
    route: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(place: Place) -> list[str]:
        more = {
            "field_of_2027": {"a": [1]},
            "temperature": 0.25,
            "top_p": None,
            "response_format": {"type": "json_object"},
        }
        bodies = [PLAIN[route], PLAIN[route] | more, PLAIN[route] | more | {"metadata": {}}]
        assert [(await post(place, route, body)).status_code for body in bodies] == [200] * 3
        return [request.prompt_ids.tobytes().hex() for request in place.engine.requests]

    assert len(set(serve(["yes"], play))) == 1
    first, second = [record.getMessage() for record in caplog.records if "program" in record.getMessage()]
    assert first.startswith("Tools:") and "x:y" in first and "temperature" in first and "field_of_2027" in first
    assert "metadata" in second and "field_of_2027" not in second


@pytest.mark.parametrize("route", PLAIN)
def test_a_stream_begins_before_anything_is_sampled(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roll.pipeline.agentic.proxy.endpoint.app.BEGIN_S", 0.0)
    first = {"/chat/completions": '"role": "assistant"', "/responses": "response.created", "/messages": "message_start"}

    async def play(place: Place) -> None:
        gate = place.engine.gate = asyncio.Event()
        url, headers = place.variables["OPENAI_BASE_URL"] + route, {"x-api-key": place.session.key}
        async with (
            httpx.AsyncClient(trust_env=False, headers=headers, timeout=60) as client,
            client.stream("POST", url, json=PLAIN[route] | {"stream": True}) as reply,
        ):
            lines = reply.aiter_lines()
            begun = [await anext(lines), await anext(lines)]
            assert first[route] in begun[0] and not place.engine.sent
            gate.set()
            assert any("yes" in line for line in [line async for line in lines])

    serve(["yes"], play)


def test_tokens_are_counted_also_behind_the_last_answer() -> None:
    messages = [{"role": "user", "content": "box F?"}, {"role": "assistant", "content": "7"}]

    async def play(place: Place) -> list[int]:
        body = {"messages": messages, "max_tokens": 9}
        routes = ("/messages/count_tokens", "/messages")
        return [(await post(place, route, body)).status_code for route in routes]

    assert serve(["yes"], play) == [200, 400]
