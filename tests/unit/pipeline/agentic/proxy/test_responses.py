"""OpenAI's SDK as a client of the protocol of responses, in the process of the test."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.helpers.cases import cases
from tests.unit.pipeline.agentic.proxy.parts import ASK, CALL, Place, check_rows, serve

openai = pytest.importorskip("openai", reason="the SDK of OpenAI is not installed")
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "open",
    "description": "Opens a box.",
    "parameters": {"type": "object", "properties": {"box": {"type": "string"}}, "required": ["box"]},
}
SAID = "<think>which one</think>I open it\n" + CALL


@pytest.mark.parametrize("keeps", ["items", "dumped", "sealed", "id"])
def test_loop_of_tools_is_one_row_however_the_program_keeps_its_history(keeps: str) -> None:
    async def play(place: Place) -> None:
        create = place.openai().responses.create
        items: list[Any] = list(ASK)
        keys: dict[str, Any] = {"model": "m", "tools": [TOOL], "instructions": "Be brief."}
        first = await create(input=items, store=keeps == "id", include=["reasoning.encrypted_content"], **keys)
        call = first.output[-1]
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        assert first.output_text == "I open it" and first.status == "completed"
        assert (call.name, json.loads(call.arguments)) == ("open", {"box": "F"})
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
        if keeps == "id":
            second = await create(input=[result], previous_response_id=first.id, **keys)
        else:
            output: list[Any] = list(first.output)
            if keeps != "items":
                output = [item.model_dump() for item in output]
            if keeps == "sealed":
                output[0]["content"] = None
            second = await create(input=[*items, *output, result], **keys)
        assert second.output_text == "it is 7"
        assert second.usage.input_tokens == len(place.engine.requests[1].prompt_ids)
        assert place.session.transcript.counts["continued"] == 1 and not place.session.transcript.counts["broken"]
        assert len(place.rows()) == 1
        check_rows(place.rows(), place.engine, first.usage.output_tokens + second.usage.output_tokens)

    serve([SAID, "it is 7"], play)


def test_same_tokens_as_in_the_protocol_of_chat() -> None:
    async def play(place: Place) -> None:
        chat = {"type": "function", "function": {name: TOOL[name] for name in ("name", "description", "parameters")}}
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, *ASK]
        await place.openai().chat.completions.create(model="m", messages=messages, tools=[chat])
        await place.openai().responses.create(model="m", input="box F?", instructions="Be brief.", tools=[TOOL])
        first, second = place.engine.requests
        assert first.prompt_ids.tolist() == second.prompt_ids.tolist()

    serve(["yes"], play)


def test_stream_is_put_together_by_the_sdk() -> None:
    async def play(place: Place) -> None:
        kinds = []
        async with place.openai().responses.stream(model="m", input=ASK, tools=[TOOL]) as stream:
            async for event in stream:
                kinds.append(event.type)
            whole = await stream.get_final_response()
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        assert {"response.output_text.delta", "response.function_call_arguments.delta",
                "response.reasoning_text.delta"} <= set(kinds)  # fmt: skip
        assert whole.output_text == "I open it" and json.loads(whole.output[-1].arguments) == {"box": "F"}

    serve([SAID], play)


def test_a_cut_answer_is_incomplete_and_two_answers_in_a_row_stay_two() -> None:
    async def play(place: Place) -> None:
        create = place.openai().responses.create
        cut = await create(model="m", input=ASK, max_output_tokens=2)
        assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
        said = [{"role": "assistant", "content": text} for text in ("a", "b")]
        await create(model="m", input=[*ASK, *said, {"role": "user", "content": [{"type": "input_text", "text": "?"}]}])
        shown = place.engine.encoder.show(place.engine.requests[1].prompt_ids)
        assert "assistant\na<|im_end|>" in shown and "assistant\nb<|im_end|>" in shown and "user\n?<|im_end|>" in shown

    serve(["a long answer"], play)


def test_instructions_are_of_their_own_request_alone() -> None:
    async def play(place: Place) -> None:
        create = place.openai().responses.create
        first = await create(model="m", input="1", instructions="old")
        await create(model="m", input="2", instructions="new", previous_response_id=first.id)
        shown = place.engine.encoder.show(place.engine.requests[1].prompt_ids)
        assert "new" in shown and "old" not in shown and "yes" in shown
        assert place.session.transcript.counts["broken_system_changed"] == 1

    serve(["yes"], play)


@pytest.mark.parametrize(
    "body",
    [
        {"input": [{"type": "reasoning", "content": 5}]},
        {"input": [{"type": ["x"]}]},
    ],
)
def test_nonsense_is_refused_and_nothing_is_sampled(body: dict[str, Any]) -> None:
    async def play(place: Place) -> None:
        url, headers = f"{place.variables['OPENAI_BASE_URL']}/responses", {"x-api-key": place.session.key}
        async with httpx.AsyncClient(trust_env=False) as client:
            reply = await client.post(url, content=json.dumps(body), headers=headers)
        assert reply.status_code == 400 and not place.engine.requests, reply.text

    serve(["yes"], play)


@cases("changes, field")
def test_what_is_not_done_is_refused_by_its_field(changes: dict[str, Any], field: str) -> None:
    async def play(place: Place) -> Any:
        with pytest.raises(openai.BadRequestError) as error:
            await place.openai().responses.create(**({"model": "m", "input": "box F?"} | changes))
        return error.value

    error = serve(["yes"], play)
    assert error.param == field and field in error.message


def test_errors_reach_streams_too() -> None:
    async def play(place: Place) -> None:
        place.engine.finish = "abort"
        with pytest.raises(openai.InternalServerError):
            await place.openai().responses.create(model="m", input="1", stream=True)

    serve(["yes"], play)
