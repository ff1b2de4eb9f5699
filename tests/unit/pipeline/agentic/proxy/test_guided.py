"""Answers that a response format or a tool choice leads: what engines are asked for, and that nothing of them is
trained."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from roll.distributed.strategy.hf.structure import Structures
from roll.errors import StrategyError
from roll.pipeline.agentic.proxy.transcript.guide import GuideRefused, structure_of
from roll.pipeline.agentic.proxy.transcript.message import ChatCall
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from tests.unit.pipeline.agentic.proxy.parts import ASK, CALL, KEEPS, OPEN, Place, serve, tool_encoder

openai = pytest.importorskip("openai", reason="the package openai is not installed")
xgrammar = pytest.importorskip("xgrammar", reason="the package xgrammar is not installed")
DIGIT = {"type": "object", "properties": {"digit": {"type": "integer"}}, "required": ["digit"]}
SHUT: dict[str, Any] = {"type": "function", "function": {"name": "shut"}}
QWEN_CALL = "<tool_call>\n<function=open>\n<parameter=box>\nF\n</parameter>\n</function>\n</tool_call>"
LLAMA_CALL = '{"name": "open", "parameters": {"box": "F"}}'


def fits(structure: str | None, text: str) -> bool:
    """Whether an engine that follows the structure can say this and end."""
    assert structure is not None
    tokenizer = tool_encoder().tokenizer
    end = int(tokenizer.convert_tokens_to_ids("<|im_end|>"))  # type: ignore[arg-type]
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, stop_token_ids=[end])
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_structural_tag(structure))
    return matcher.accept_string(text) and matcher.accept_token(end)


def led(template: str = KEEPS, **keys: Any) -> str | None:
    return structure_of(ChatCall((), **keys), Parser(tool_encoder(template)))


def test_a_schema_and_any_object_lead_to_json_alone() -> None:
    assert fits(led(schema=DIGIT), '{"digit": 5}')
    for text in ('{"digit": "5"}', '{"digit": 5, "more": 1}', "5", '{"digit":   5}'):
        assert not fits(led(schema=DIGIT), text), text
    assert fits(led(schema={"type": "object", "additionalProperties": True}), '{"a": [1, {"b": null}]}')
    assert led(tools=(OPEN,)) is None


@pytest.mark.parametrize(
    ("template", "call"),
    [
        (KEEPS, CALL),
        (KEEPS.replace("<tool_call>", "<tool_call><function="), QWEN_CALL),
        ("{{ tools }}{{ '\"parameters\": ' }}{{ tool_calls }}", LLAMA_CALL),
    ],
    ids=["hermes", "qwen3.5", "llama"],
)
def test_a_tool_choice_leads_to_a_call_in_the_models_own_form(template: str, call: str) -> None:
    one = led(template, tools=(OPEN, SHUT), must_call=("open",))
    assert fits(one, call) and not fits(one, call.replace("open", "shut")) and not fits(one, "no")
    some = led(template, tools=(OPEN, SHUT), must_call=("open", "shut"))
    assert fits(some, call)
    encoder = tool_encoder(template)
    assert Parser(encoder).parse(call, [OPEN], "x").message.calls[0].canonical == '{"box": "F"}'


def test_other_forms_of_calls_cannot_be_led_and_thinking_that_the_template_begins_is_ended() -> None:
    with pytest.raises(GuideRefused, match="tool_choice: only auto and none work"):
        led("{{ tools }}[TOOL_CALLS]", tools=(OPEN,), must_call=("open",))
    thinks = KEEPS.replace("'<|im_start|>assistant\n' }}{% endif %}", "'<|im_start|>assistant\n<think>' }}{% endif %}")
    structure = led(thinks, schema=DIGIT)
    assert fits(structure, '</think>\n\n{"digit": 5}') and not fits(structure, '{"digit": 5}')


def test_structures_that_would_hold_up_an_engine_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep}}
    many = {"type": "object", "properties": {f"key_{i}": {"type": "string"} for i in range(2000)}}
    for schema in (deep, many, {"enum": ["x" * 40_000]}):
        with pytest.raises(GuideRefused, match=r"32768 on 64 are supported. Shorten them, or ask for a json_object"):
            led(schema=schema)
    odd = {"type": "function", "function": {"name": 'a"b'}}
    with pytest.raises(GuideRefused, match="no call can be led to 'a\"b'"):
        led(tools=(odd,), must_call=('a"b',))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$ref": "#"}, ""),
        ({"$defs": {"x": {"$ref": "#/$defs/x"}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/x"}},
          "required": ["a"]}, '{"a": '),
    ],
)  # fmt: skip
def test_an_answer_behind_which_nothing_fits_ends(schema: dict[str, Any], said: str) -> None:
    encoder = tool_encoder()
    end = int(encoder.tokenizer.convert_tokens_to_ids("<|im_end|>"))  # type: ignore[arg-type]
    structure = led(schema=schema)
    assert structure is not None
    follower = Structures(encoder.tokenizer).follow(structure, frozenset({end}), 296)
    for token in encoder.encode(said).tolist():
        assert not follower.banned()[token]
        follower.take(token)
    assert np.flatnonzero(~follower.banned()).tolist() == [end]
    follower.take(end)


def test_a_led_answer_is_context_and_not_trained() -> None:
    async def play(place: Place) -> None:
        create = place.openai().chat.completions.create
        messages: list[Any] = list(ASK)
        kept = {"type": "json_schema", "json_schema": {"name": "d", "schema": DIGIT, "strict": True}}
        for form in ({"type": "text"}, kept, None):
            keys = {} if form is None else {"response_format": form}
            reply = await create(model="m", messages=messages, **keys)
            messages += [reply.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "on"}]
        assert [request.sampling.structure is not None for request in place.engine.requests] == [False, True, False]
        (row,) = place.rows()
        runs = np.flatnonzero(np.diff(row.response_mask.astype(int), prepend=0) == 1)
        assert len(runs) == 2 and {0, 2} == set(row.policy_versions[row.response_mask].tolist())
        assert row.turn_rewards is not None and len(row.turn_rewards) == 2
        assert place.session.transcript.counts["guided"] == 1
        assert place.session.transcript.counts["broken"] == 0

    serve(["a", '{"digit": 5}', "b"], play)


def test_a_tool_choice_of_each_protocol_reaches_the_engine() -> None:
    async def play(place: Place) -> None:
        client, tools = place.openai(), [OPEN]
        one = {"type": "function", "function": {"name": "open"}}
        for choice in ("required", one):
            await client.chat.completions.create(model="m", messages=ASK, tools=tools, tool_choice=choice)
        flat = {"type": "function", **OPEN["function"]}
        reply = await client.responses.create(
            model="m",
            input="box F?",
            tools=[flat],
            tool_choice={"type": "function", "name": "open"},
        )
        assert reply.output[0].name == "open"
        form = {"type": "json_schema", "name": "d", "schema": DIGIT}
        await client.responses.create(model="m", input="box F?", text={"format": form})
        asked = [json.loads(request.sampling.structure or "{}")["format"] for request in place.engine.requests]
        assert asked[0] == asked[1] == asked[2] and asked[0]["tags"][0]["begin"].startswith("<tool_call>")
        assert asked[3]["json_schema"] == DIGIT
        assert place.rows() == []

    serve([CALL], play)


def test_anthropics_any_and_tool_are_choices_too() -> None:
    pytest.importorskip("anthropic", reason="the package anthropic is not installed")

    async def play(place: Place) -> None:
        tool = {"name": "open", "description": "Opens a box.", "input_schema": OPEN["function"]["parameters"]}
        for choice in ({"type": "any"}, {"type": "tool", "name": "open"}):
            reply = await place.anthropic().messages.create(
                model="c", max_tokens=99, messages=ASK, tools=[tool], tool_choice=choice
            )
            assert reply.content[0].type == "tool_use"
        assert all(request.sampling.structure for request in place.engine.requests)

    serve([CALL], play)


def test_an_engine_without_structures_refuses_in_the_protocols_shape() -> None:
    async def play(place: Place) -> None:
        place.engine.error = StrategyError("an answer with a structure needs the package xgrammar")
        with pytest.raises(openai.BadRequestError, match="needs the package xgrammar"):
            await place.openai().chat.completions.create(
                model="m", messages=ASK, response_format={"type": "json_object"}
            )

    serve(["x"], play)
