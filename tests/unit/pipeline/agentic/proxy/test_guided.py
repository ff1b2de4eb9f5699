"""Answers that a response format or a tool choice leads: what engines are asked for, and that nothing of them is
trained."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken

from roll.distributed.strategy.hf.structure import Structures
from roll.errors import StrategyError
from roll.pipeline.agentic.proxy.transcript.guide import JSON, GuideRefused, structure_of
from roll.pipeline.agentic.proxy.transcript.message import ChatCall
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.pipeline.agentic.sample_forms import ChatEncoder
from tests.helpers.cases import cases
from tests.unit.pipeline.agentic.proxy.parts import ASK, CALL, KEEPS, OPEN, Place, serve, tool_encoder

openai = pytest.importorskip("openai", reason="the package openai is not installed")
xgrammar = pytest.importorskip("xgrammar", reason="the package xgrammar is not installed")
DIGIT = {"type": "object", "properties": {"digit": {"type": "integer"}}, "required": ["digit"]}
SHUT: dict[str, Any] = {"type": "function", "function": {"name": "shut"}}
QWEN_CALL = "<tool_call>\n<function=open>\n<parameter=box>\nF\n</parameter>\n</function>\n</tool_call>"
GLM_CALL = "<tool_call>open\n<arg_key>box</arg_key>\n<arg_value>F</arg_value>\n</tool_call>"
HARMONY_MARKS = ("<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|start|>", "<|end|>", "<|return|>")
HARMONY_CALL = '<|channel|>commentary to=functions.open <|constrain|>json<|message|>{"box": "F"}<|call|>'
LLAMA_CALL = '{"name": "open", "parameters": {"box": "F"}}'


def fits(structure: str | None, text: str, encoder: ChatEncoder | None = None) -> bool:
    """Whether an engine that follows the structure can say this and end. A text that ends with a token that ends
    answers is said with it."""
    assert structure is not None
    encoder = encoder or tool_encoder()
    ends = sorted(encoder.ends.tokens)
    info = xgrammar.TokenizerInfo.from_huggingface(encoder.tokenizer, stop_token_ids=ends)
    xgrammar.Grammar.from_structural_tag(structure)  # vLLM reads it without the tokenizer first
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_structural_tag(structure))
    ids = encoder.encode(text).tolist()
    return all(map(matcher.accept_token, ids if ids[-1] in ends else [*ids, ends[0]]))


def led(template: str = KEEPS, **keys: Any) -> str | None:
    return structure_of(ChatCall((), **keys), Parser(tool_encoder(template)))


def test_a_schema_and_any_object_lead_to_json_alone() -> None:
    assert fits(led(schema=DIGIT), '{"digit": 5}')
    for text in ('{"digit": "5"}', '{"digit": 5, "more": 1}', "5", '{"digit":   5}'):
        assert not fits(led(schema=DIGIT), text), text
    assert fits(led(schema={"type": "object", "additionalProperties": True}), '{"a": [1, {"b": null}]}')
    assert led(tools=(OPEN,)) is None


FORMS = {
    "hermes": (KEEPS, CALL),
    "qwen3.5": (KEEPS.replace("<tool_call>", "<tool_call><function="), QWEN_CALL),
    "llama": ("{{ tools }}{{ '\"parameters\": ' }}{{ tool_calls }}", LLAMA_CALL),
    "glm": (KEEPS.replace("<tool_call>", "<tool_call><arg_key>"), GLM_CALL),
    "glm-4.7": (KEEPS.replace("<tool_call>", "<tool_call><arg_key>"), GLM_CALL.replace("\n", "")),
    "mistral": ("{{ tools }}[TOOL_CALLS]", '[TOOL_CALLS] [{"name": "open", "arguments": {"box": "F"}}]'),
    "mistral_args": ("{{ tools }}[TOOL_CALLS][ARGS]", '[TOOL_CALLS]open[ARGS]{"box": "F"}'),
    "gpt-oss": ("{{ tools }}<|channel|><|call|>", HARMONY_CALL),
}
MARKS = {"mistral": ("[TOOL_CALLS]",), "mistral_args": ("[TOOL_CALLS]", "[ARGS]"), "gpt-oss": HARMONY_MARKS}


def marked_encoder(form: str) -> ChatEncoder:
    """With the special tokens that the family has."""
    encoder = tool_encoder(FORMS[form][0])
    tokens = [AddedToken(mark, special=True, normalized=False) for mark in MARKS.get(form, ())]
    encoder.tokenizer.add_tokens(tokens, special_tokens=True)  # type: ignore[arg-type]
    if form == "gpt-oss":
        encoder.tokenizer.eos_token = "<|return|>"
    return ChatEncoder(encoder.tokenizer)


@pytest.mark.parametrize(("form", "has_marks"), [*((form, False) for form in FORMS), *((form, True) for form in MARKS)])
def test_a_tool_choice_leads_to_a_call_in_the_models_own_form(form: str, has_marks: bool) -> None:
    template, call = FORMS[form]
    encoder = marked_encoder(form) if has_marks else tool_encoder(template)

    def structure(*names: str) -> str | None:
        return structure_of(ChatCall((), tools=(OPEN, SHUT), must_call=names), Parser(encoder))

    one = structure("open")
    assert fits(one, call, encoder) and not fits(one, call.replace("open", "shut"), encoder)
    assert not fits(one, "no", encoder)
    some = structure("open", "shut")
    assert fits(some, call, encoder)
    text = Parser(encoder).text(encoder.encode(call))
    assert Parser(encoder).parse(text, [OPEN], "x").message.calls[0].canonical == '{"box": "F"}'


def test_several_calls_are_led_where_the_form_has_them() -> None:
    open_f, shut = '{"name": "open", "arguments": {"box": "F"}}', '{"name": "shut", "arguments": {}}'
    for form, text in {
        "hermes": f"{CALL}\n<tool_call>\n{shut}\n</tool_call>",
        "glm": f"{GLM_CALL}\n<tool_call>shut</tool_call>",
        "mistral": f"[TOOL_CALLS] [{open_f}, {shut}]",
        "mistral_args": f"{FORMS['mistral_args'][1]}[TOOL_CALLS]shut[ARGS]{{}}",
    }.items():
        encoder = marked_encoder(form)
        keys: dict[str, Any] = {"tools": (OPEN, SHUT), "must_call": ("open", "shut")}
        assert fits(structure_of(ChatCall((), **keys), Parser(encoder)), text, encoder), text


def test_forms_that_cannot_be_led_are_known() -> None:
    encoder = marked_encoder("gpt-oss")
    structure = structure_of(ChatCall((), schema=DIGIT), Parser(encoder))
    text = '<|channel|>final<|message|>{"digit": 5}'
    assert fits(structure, text, encoder) and not fits(structure, '{"digit": 5}', encoder)
    assert Parser(encoder).parse(text, (), "x").message.content == '{"digit": 5}'
    with pytest.raises(GuideRefused, match="tool_choice: only auto and none work"):
        led("{{ tools }}", tools=(OPEN,), must_call=("open",))
    thinks = KEEPS.replace("'<|im_start|>assistant\n' }}{% endif %}", "'<|im_start|>assistant\n<think>' }}{% endif %}")
    structure = led(thinks, schema=DIGIT)
    assert fits(structure, '</think>\n\n{"digit": 5}') and not fits(structure, '{"digit": 5}')
    odd = {"type": "function", "function": {"name": 'a"b'}}
    with pytest.raises(GuideRefused, match="no call can be led to 'a\"b'"):
        led(tools=(odd,), must_call=('a"b',))


@cases("schema, said")
def test_a_schema_that_contains_itself_and_ends_is_followed(schema: dict[str, Any], said: str) -> None:
    assert fits(led(schema=schema), said)


@cases("schema")
def test_what_is_no_schema_is_the_engines_affair(schema: dict[str, Any]) -> None:
    assert led(schema=schema) is not None


def test_an_answer_behind_which_nothing_fits_ends() -> None:
    """A structure that the endpoint would refuse."""
    encoder = tool_encoder()
    end = int(encoder.tokenizer.convert_tokens_to_ids("<|im_end|>"))  # type: ignore[arg-type]
    itself = {"$defs": {"x": {"$ref": "#/$defs/x"}}, "properties": {"a": {"$ref": "#/$defs/x"}}}
    schema = {**itself, "type": "object", "required": ["a"]}
    structure = json.dumps({"type": "structural_tag", "format": {**JSON, "json_schema": schema}})
    follower = Structures(encoder.tokenizer).follow(structure, frozenset({end}), 296)
    for token in encoder.encode('{"a": ').tolist():
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
