"""The protocols' own SDKs as clients of the endpoint, in the process of the test."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import numpy as np
import pytest

from roll.errors import StrategyError, WorkerError
from roll.pipeline.agentic.episode import turn_seed
from roll.pipeline.agentic.proxy.endpoint.reward import Outcome
from roll.pipeline.agentic.proxy.endpoint.session import MOST_REFUSED
from tests.helpers.cases import cases
from tests.unit.pipeline.agentic.proxy.parts import (
    ASK,
    CALL,
    ENCODER,
    JOB,
    OPEN,
    Place,
    check_rows,
    open_session,
    serve,
    until,
)

openai = pytest.importorskip("openai", reason="the SDK of OpenAI is not installed")
anthropic = pytest.importorskip("anthropic", reason="the SDK of Anthropic is not installed")


def test_openai_loop_of_tools_is_one_row() -> None:
    async def play(place: Place) -> tuple[list[Any], Any]:
        client, messages = place.openai(), list(ASK)
        first = await client.chat.completions.create(model="gpt-4o", messages=messages, tools=[OPEN])
        call = first.choices[0].message.tool_calls[0]
        assert first.choices[0].finish_reason == "tool_calls" and first.choices[0].message.content is None
        assert (call.function.name, json.loads(call.function.arguments)) == ("open", {"box": "F"})
        messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
        second = await client.chat.completions.create(model="gpt-4o", messages=messages, tools=[OPEN], max_tokens=50)
        assert second.choices[0].message.content == "it is 7" and second.choices[0].finish_reason == "stop"
        assert second.usage.prompt_tokens == len(place.engine.requests[1].prompt_ids)
        assert place.engine.requests[1].sampling.max_new_tokens == 50
        check_rows(place.rows(), place.engine, first.usage.completion_tokens + second.usage.completion_tokens)
        return place.rows(), [request.sampling.seed for request in place.engine.requests]

    rows, seeds = serve([CALL, "it is 7"], play)
    assert len(rows) == 1
    assert seeds == [turn_seed(3, JOB, turn, 0) for turn in range(2)], "those of an environment's episode"


def test_the_same_request_again_is_another_sample() -> None:
    async def play(place: Place) -> None:
        client = place.openai()
        texts = [(await client.chat.completions.create(model="m", messages=ASK)) for _ in range(2)]
        assert [text.choices[0].message.content for text in texts] == ["0", "1"]
        assert len({request.sampling.seed for request in place.engine.requests}) == 2 and len(place.rows()) == 2

    serve(["0", "1"], play)


def test_a_stream_that_is_left_frees_its_request() -> None:
    async def play(place: Place) -> None:
        place.session.retry_window_s, place.engine.gate = 0.0, asyncio.Event()
        async for _ in await place.openai().chat.completions.create(model="m", messages=ASK, stream=True):
            break
        await place.open[0].close()
        await until(lambda: not place.session.is_waiting)
        assert not place.rows()

    serve(["yes"], play)


def test_openai_stream_says_what_the_whole_reply_says() -> None:
    async def play(place: Place) -> None:
        client = place.openai()
        options = {"include_usage": True}
        stream = await client.chat.completions.create(
            model="m", messages=ASK, tools=[OPEN], stream=True, stream_options=options
        )
        thought, text, calls, finish, usage = "", "", [], None, None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                thought += getattr(choice.delta, "reasoning_content", None) or ""
                text += choice.delta.content or ""
                calls += choice.delta.tool_calls or []
                finish = choice.finish_reason or finish
        assert (thought, text, finish) == ("hm", "I open it", "tool_calls")
        assert calls[0].function.arguments == '{"box": "F"}' and calls[0].index == 0
        assert usage is not None and usage.completion_tokens == len(place.rows()[0].input_ids) - usage.prompt_tokens

    serve(["<think>hm</think>I open it\n" + CALL], play)


def test_log_probs_are_those_that_are_trained() -> None:
    async def play(place: Place) -> None:
        reply = await place.openai().chat.completions.create(model="m", messages=ASK, logprobs=True)
        told = [one.logprob for one in reply.choices[0].logprobs.content]
        (row,) = place.rows()
        assert np.array_equal(np.array(told, np.float32), row.log_probs[row.response_mask])

    serve(["yes"], play)


def test_n_samples_are_siblings_and_stop_strings_end_them() -> None:
    async def play(place: Place) -> None:
        reply = await place.openai().chat.completions.create(model="m", messages=ASK, n=3, stop="!")
        assert [choice.message.content for choice in reply.choices] == ["a", "b", "c"]
        assert place.engine.requests[0].num_samples == 3
        assert place.engine.requests[0].sampling.stop_strings == ("!",)
        assert len(place.rows()) == 3
        assert all(ENCODER.show(row.input_ids[row.response_mask])[1] == "!" for row in place.rows())

    serve(["a!", "b!", "c!"], play)


def test_a_client_that_leaves_and_asks_again_gets_the_first_answer() -> None:
    async def play(place: Place) -> None:
        place.engine.gate = asyncio.Event()
        left = asyncio.create_task(place.openai().chat.completions.create(model="m", messages=ASK))
        await until(lambda: bool(place.engine.requests))
        left.cancel()
        await asyncio.wait([left])
        assert not place.rows(), "what nobody received is not trained"
        again = asyncio.create_task(place.openai().chat.completions.create(model="m", messages=ASK))
        await until(lambda: place.session.transcript.counts["retries"] == 1)
        place.engine.gate.set()
        assert (await again).choices[0].message.content == "0"
        assert len(place.engine.requests) == 1 and len(place.rows()) == 1

    serve(["0", "1"], play)


def test_anthropic_loop_of_tools_is_one_row() -> None:
    tool = {"name": "open", "description": "Opens a box.", "input_schema": OPEN["function"]["parameters"]}

    async def play(place: Place) -> None:
        client, messages = place.anthropic(), list(ASK)
        keys: dict[str, Any] = {"model": "claude", "max_tokens": 300, "tools": [tool]}
        system = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
        first = await client.messages.create(messages=messages, system=system, **keys)
        assert [block.type for block in first.content] == ["thinking", "tool_use"]
        assert first.stop_reason == "tool_use" and first.content[1].input == {"box": "F"}
        result = {"type": "tool_result", "tool_use_id": first.content[1].id, "content": [{"type": "text", "text": "7"}]}
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        counted = await client.messages.count_tokens(model="claude", messages=messages, tools=[tool], system="be brief")
        async with client.messages.stream(messages=messages, system="be brief", **keys) as stream:
            last = await stream.get_final_message()
        assert last.content[0].text == "it is 7" and last.stop_reason == "end_turn"
        assert last.usage.input_tokens == len(place.engine.requests[1].prompt_ids) == counted.input_tokens
        assert len(place.rows()) == 1 and not place.session.transcript.breaks
        check_rows(place.rows(), place.engine, first.usage.output_tokens + last.usage.output_tokens)
        shown = ENCODER.show(place.rows()[0].input_ids)
        assert "<|im_start|>system\nbe brief<|im_end|>" in shown and "<tool_response>\n7\n</tool_response>" in shown

    serve(["<think>hm</think>" + CALL, "it is 7"], play)


@pytest.mark.parametrize("value", ['"\\ud800"', "NaN"])
def test_a_call_that_no_reply_can_hold_is_text(value: str) -> None:
    said = CALL.replace('"F"', value)

    async def play(place: Place) -> None:
        tool = {"name": "open", "input_schema": OPEN["function"]["parameters"]}
        first = await place.openai().chat.completions.create(model="m", messages=ASK, tools=[OPEN])
        assert first.choices[0].message.content == said and not first.choices[0].message.tool_calls
        last = await place.anthropic().messages.create(model="c", max_tokens=300, messages=ASK, tools=[tool])
        assert last.content[0].text == said and place.session.transcript.counts["malformed_calls"] == 2

    serve([said], play)


def test_anthropic_says_which_stop_sequence_ended_an_answer() -> None:
    async def play(place: Place) -> None:
        keys: dict[str, Any] = {"model": "c", "max_tokens": 9, "messages": ASK, "stop_sequences": ["?", "!"]}
        last = await place.anthropic().messages.create(**keys)
        async with place.anthropic().messages.stream(**keys) as stream:
            streamed = await stream.get_final_message()
        for one in (last, streamed):
            assert (one.stop_reason, one.stop_sequence, one.content[0].text) == ("stop_sequence", "!", "a")
        assert (await place.anthropic().messages.create(**keys)).stop_reason == "end_turn"

    serve(["a!b", "a!b", "ab"], play)


def test_models_are_listed_in_both_protocols() -> None:
    async def play(place: Place) -> None:
        assert [model.id async for model in place.openai().models.list()] == ["policy"]
        assert [model.id async for model in place.anthropic().models.list()] == ["policy"]

    serve(["yes"], play)


@cases("changes, field")
def test_what_is_not_done_is_refused_by_its_field(changes: dict[str, Any], field: str) -> None:
    async def play(place: Place) -> Any:
        with pytest.raises(openai.BadRequestError) as error:
            await place.openai().chat.completions.create(**({"model": "m", "messages": ASK} | changes))
        return error.value

    error = serve(["yes"], play)
    assert error.param == field and field in error.message and error.type == "invalid_request_error"


def test_anthropic_refuses_in_its_own_shape() -> None:
    async def play(place: Place) -> None:
        with pytest.raises(anthropic.BadRequestError, match="messages") as error:
            await place.anthropic().messages.create(model="c", max_tokens=9, messages=[])
        assert error.value.body["error"]["type"] == "invalid_request_error"
        with pytest.raises(anthropic.AuthenticationError):
            await place.anthropic(api_key="roll-x-y").messages.create(model="c", max_tokens=9, messages=ASK)

    serve(["yes"], play)


def test_a_prompt_that_is_too_long_says_so_as_the_protocol_does() -> None:
    async def play(place: Place) -> None:
        long: list[Any] = [{"role": "user", "content": "9" * 5000}]
        with pytest.raises(openai.BadRequestError) as error:
            await place.openai().chat.completions.create(model="m", messages=long)
        assert error.value.code == "context_length_exceeded"
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: .* tokens > 3999 maximum"):
            await place.anthropic().messages.create(model="c", max_tokens=9, messages=long)
        with pytest.raises(openai.BadRequestError) as error:
            await place.openai().chat.completions.create(model="m", messages=long, stream=True)
        assert error.value.code == "context_length_exceeded", "a stream tells it by its status, too"
        assert (await place.openai().chat.completions.create(model="m", messages=ASK)).choices

    serve(["yes"], play)


def test_answers_that_are_cut_short_and_engines_that_fail_are_told_by_status() -> None:
    async def play(place: Place) -> None:
        client, engine = place.openai(), place.engine
        engine.finish = "abort"
        with pytest.raises(openai.InternalServerError) as error:
            await client.chat.completions.create(model="m", messages=ASK)
        assert error.value.status_code == 503 and error.value.response.headers["Retry-After"]
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="m", messages=ASK, stream=True)
        engine.finish, engine.error = None, StrategyError("no room")
        with pytest.raises(openai.BadRequestError, match="no room"):
            await client.chat.completions.create(model="m", messages=ASK)
        engine.error = WorkerError("rank 0 died")
        with pytest.raises(openai.InternalServerError, match="rank 0 died"):
            await client.chat.completions.create(model="m", messages=ASK)
        assert place.session.error is engine.error and not place.rows()

    serve(["yes"], play)


def test_a_deadline_that_passed_while_the_loop_was_busy_still_holds() -> None:
    async def play(place: Place) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.0) as place.session.deadline:
                with place.session._waiting():
                    pass
                await asyncio.sleep(30)

    serve(["yes"], play)


def test_a_session_has_max_steps_answers_and_nothing_after_its_end() -> None:
    async def play(place: Place) -> None:
        client = place.openai()
        await client.chat.completions.create(model="m", messages=ASK)
        assert place.session.over.is_set()
        with pytest.raises(openai.BadRequestError) as error:
            await client.chat.completions.create(model="m", messages=ASK)
        assert error.value.code == "turn_limit"
        await place.endpoint.close(place.session)
        with pytest.raises(openai.APIStatusError, match="The session is over"):
            await client.chat.completions.create(model="m", messages=ASK)

    serve(["yes"], play, max_steps=1)


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": "9" * 5000}]])
def test_a_program_that_sends_nonsense_is_ended(messages: list[Any]) -> None:
    async def play(place: Place) -> None:
        client = place.openai()
        for _ in range(MOST_REFUSED):
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="m", messages=messages)
        assert place.session.over.is_set() and "in a row were refused" in place.session.failure

    serve(["yes"], play)


@cases("method, route")
def test_without_its_key_no_request_reaches_a_session(method: str, route: str) -> None:
    async def play(place: Place) -> None:
        other = open_session(place.endpoint)
        base = f"http://127.0.0.1:{place.endpoint.port}"
        own, theirs = f"/s/{place.session.session_id}", f"/s/{other.session_id}"
        key = place.session.key
        forged = f"roll-{other.session_id}-{key.rpartition('-')[2]}"
        bodies = {"reward": 1.0} if "reward" in route else {"messages": ASK, "max_tokens": 5}
        if "responses" in route:
            bodies = {"input": "box F?"}
        attempts: list[tuple[str, dict[str, Any]]] = [
            (own, {}),
            ("", {}),
            (theirs, {"authorization": f"Bearer {key}"}),
            (theirs, {"x-api-key": key}),
            ("", {"x-api-key": key, "authorization": f"Bearer {other.key}"}),
            (own, {"x-api-key": forged}),
            (theirs, {"x-api-key": forged}),
            ("/s/none", {"x-api-key": key}),
            (own, {"x-api-key": key[:-1]}),
            (own, {"x-api-key": "roll--"}),
            (own, {"x-api-key": b"\xc3\xa9"}),
        ]
        async with httpx.AsyncClient(base_url=base) as client:
            said = set()
            for prefix, headers in attempts:
                reply = await client.request(method, prefix + route, headers=headers, json=bodies)
                assert reply.status_code == 401, (prefix, headers)
                said.add(reply.text)
            assert len(said) == 1 and key not in str(said)
            good = {"x-api-key": key}
            for prefix in (own, ""):
                reply = await client.request(method, prefix + route, headers=good, json=bodies)
                assert reply.status_code == 200, reply.text
        assert not other.num_answers and other.outcome is None and other.transcript.counts == {}

    serve(["yes"], play)


def test_a_reward_is_a_number() -> None:
    async def play(place: Place) -> None:
        async with httpx.AsyncClient(headers={"x-api-key": place.session.key}) as client:
            url = place.variables["OPENAI_BASE_URL"] + "/reward"
            for wrong in ({"reward": "much"}, {"reward": None}, [], {"reward": 1e39}, {"reward": 1, "metrics": [2]}):
                assert (await client.post(url, json=wrong)).status_code == 400
            assert (await client.post(url, content=b'{"reward": NaN}')).status_code == 400
            assert place.session.outcome is None
            assert (await client.post(url, json={"reward": 0.5, "metrics": {"won": 1}})).status_code == 200
            assert place.session.outcome == Outcome(0.5, {"won": 1.0})
            assert (await client.get(url.replace("reward", "task"))).json() == {"seed": 5}
            assert (await client.get(url.replace("reward", "secrets"))).json()["error"]["code"] == "not_found"

    serve(["yes"], play)
