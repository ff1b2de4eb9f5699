"""Random programs against the transcript: what is trained was sampled, once, behind the tokens that stand before it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.pipeline.agentic.proxy.endpoint.chat import ChatBody, ChatWire, read_chat
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.endpoint.session import Session
from roll.pipeline.agentic.proxy.transcript.transcript import transcript_rows
from roll.pipeline.agentic.sample_forms import ChatEncoder
from tests.unit.pipeline.agentic.proxy.parts import (
    CALL,
    KEEPS,
    OPEN,
    Engine,
    check_rows,
    copied,
    open_session,
    tool_encoder,
)
from tests.unit.pipeline.agentic.proxy.random_program import (
    ACTIONS,
    ENCODERS,
    SAID,
    Messages,
    Program,
    Record,
    trained_rows,
)


def speak(number: int) -> str:
    said = (*SAID, "a <|im_start|> b")
    return f"{said[number % len(said)]}" if number % 3 else f"{number} {said[number * 7 % len(said)]}"


def play(template: str, actions: list[str], seed: int) -> tuple[Engine, Program]:
    async def run() -> tuple[Engine, Program]:
        engine = Engine(ENCODERS[template], speak)
        record = Record(engine)
        program = Program(open_session(Endpoint(ENCODERS[template], record)), record, seed, template == "keeps")
        for action in actions:
            await program.act(action)
        return engine, program

    return asyncio.run(run())


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(ENCODERS)), st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=9), st.integers(0, 99)
)
def test_every_trained_token_was_sampled_once_with_its_log_prob(template: str, actions: list[str], seed: int) -> None:
    engine, program = play(template, actions, seed)
    rows = trained_rows(program)
    check_rows(rows, engine, program.trained.total())
    assert [row.turn for row in rows] == list(range(len(rows)))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(["go", "reserialize"]), min_size=2, max_size=8), st.integers(0, 99))
def test_a_program_that_only_serialises_json_anew_never_breaks(actions: list[str], seed: int) -> None:
    engine, program = play("keeps", actions, seed)
    assert not program.session.transcript.counts["broken"] and not program.session.transcript.breaks
    for request, whole in zip(engine.requests, engine.sent, strict=True):
        assert np.array_equal(whole[: len(request.prompt_ids)], request.prompt_ids)


def conversation(encoder: ChatEncoder, said: list[str], change: Any, follows: str = "and now?") -> Session:
    """Answers in turn; the messages of the last request are what `change` makes of them."""

    async def run() -> Session:
        engine = Engine(encoder, lambda number: said[number])
        session = open_session(Endpoint(encoder, engine))
        messages: Messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "box F?"}]
        for number in range(len(said)):
            if number == len(said) - 1:
                change(messages)
            body = ChatBody.model_validate({"messages": copied(messages), "tools": [OPEN]})
            reply = await session.complete(read_chat(body))
            reply.deliver()
            messages.append(ChatWire(body, session.parser, "x").reply(reply)["choices"][0]["message"])
            calls = messages[-1].get("tool_calls")
            tool = {"role": "tool", "content": "7", "tool_call_id": calls[0]["id"]} if calls else None
            messages.append(tool or {"role": "user", "content": follows})
        return session

    return asyncio.run(run())


def set_content(place: int, text: str) -> Any:
    return lambda messages: messages[place].update(content=text)


CAUSES = {
    "thinking_dropped": (["<think>why</think>yes", "no"], lambda m: m[2].pop("reasoning_content")),
    "answer_edited": (["yes", "no"], set_content(2, "so be it")),
    "system_changed": (["yes", "no"], set_content(0, "be long")),
    "message_edited": (["yes", "no"], set_content(1, "box G?")),
    "history_trimmed": (["yes", "no", "so"], lambda m: m.__delitem__(slice(1, 3))),
    "foreign_answer": (["yes", "no"], lambda m: m.insert(1, {"role": "assistant", "content": "well"})),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_break_names_its_cause_and_its_first_token(cause: str) -> None:
    said, change = CAUSES[cause]
    session = conversation(ENCODERS["keeps"], said, change)
    (found,) = session.transcript.breaks
    assert found.cause == cause and found.request == len(said)
    assert session.transcript.counts[f"broken_{cause}"] == session.transcript.counts["broken"] == 1
    assert len(list(transcript_rows(session.transcript.root))) == 2


def test_the_witness_names_what_the_program_dropped() -> None:
    session = conversation(ENCODERS["keeps"], *CAUSES["thinking_dropped"])
    (found,) = session.transcript.breaks
    assert found.was.startswith("<think>why</think>") and found.now.startswith("yes")
    assert found.before.endswith("assistant\n") and found.message == 2
    assert "request 2: the program dropped the thinking of a response (message 3, token " in found.text()
    session = conversation(ENCODERS["drops"], ["<think>why</think>yes", "no"], lambda messages: None)
    assert [one.cause for one in session.transcript.breaks] == ["template"]
    encoder = tool_encoder(KEEPS.replace("m.role + '\n' }}", "m.role + (m.name or '') + '\n' }}"))
    session = conversation(encoder, ["yes", "no"], lambda messages: messages[1].update(name="bob"))
    assert [(one.cause, one.message) for one in session.transcript.breaks] == [("message_edited", 1)]
    shown = [encoder.show(row.input_ids) for row, _ in transcript_rows(session.transcript.root)]
    assert ["userbob" in text for text in shown] == [False, True]


def test_tools_that_change_are_told() -> None:
    async def run() -> Session:
        engine = Engine(ENCODERS["keeps"], lambda number: "yes")
        session = open_session(Endpoint(ENCODERS["keeps"], engine))
        messages: Messages = [{"role": "user", "content": "box F?"}]
        for tools in ([OPEN], []):
            body = ChatBody.model_validate({"messages": messages, "tools": tools})
            (await session.complete(read_chat(body))).deliver()
            messages = [*messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "now?"}]
        return session

    assert [one.cause for one in asyncio.run(run()).transcript.breaks] == ["tools_changed"]


def test_whole_conversations_and_sub_agents_are_no_breaks() -> None:
    session = conversation(ENCODERS["keeps"], ["<think>a</think>" + CALL, "it is 7", "yes"], lambda messages: None)
    ((row, _),) = transcript_rows(session.transcript.root)
    text = ENCODERS["keeps"].show(row.input_ids)
    assert text.count("<|im_end|>") == 8 and row.facts.num_turns == 3
    assert "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>" in text
    assert session.transcript.counts["continued"] == 2

    def other(messages: Messages) -> None:
        messages[:] = [{"role": "user", "content": "a title, please"}]

    session = conversation(ENCODERS["keeps"], ["yes", "a title"], other)
    assert not session.transcript.breaks and session.transcript.counts["fresh"] == 2
    assert len(list(transcript_rows(session.transcript.root))) == 2
