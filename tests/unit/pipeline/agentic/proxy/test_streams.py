"""Streams: what a client reads before an answer has ended is its beginning, in every protocol and of a real engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roll.distributed.executor.blueprint import Blueprint
from roll.distributed.executor.rollout.engine_client import EngineClient
from roll.distributed.executor.rollout.generate_worker import GenerateWorker
from roll.distributed.strategy.hf.sampler import BatchSampler
from roll.distributed.strategy.stop_strings import answer_texts
from roll.distributed.strategy.table import strategy_class_path
from roll.pipeline.agentic.proxy.endpoint.progress import Progress, SentParts
from roll.pipeline.agentic.proxy.endpoint.server import Endpoint
from roll.pipeline.agentic.proxy.transcript.message import ChatMessage
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.pipeline.agentic.sample_forms import ChatEncoder
from roll.types.rollout import Generation, GenerationRequest, SamplingParams
from tests.helpers.engines import role
from tests.unit.distributed.executor.rollout.test_hand_over import Engine as WorkerHere
from tests.unit.distributed.executor.rollout.test_hand_over import Workers
from tests.unit.pipeline.agentic.proxy.parts import (
    ASK,
    CALL,
    ENCODER,
    OPEN,
    Engine,
    Place,
    open_session,
    serve,
    tool_encoder,
    until,
)
from tests.unit.pipeline.agentic.proxy.test_call_round_trips import PIECES, TEMPLATES, encoder_of

TOOLS = [OPEN]
WORDS = [*PIECES, "words", "<", "</", "<thi", "<tool_", "[TOOL", "{", " ", "\n", CALL, "<think>so</think>\n\n"]
FAMILIES = [*TEMPLATES, "opened"]


def parser_of(family: str) -> Parser:
    if family != "opened":
        return Parser(encoder_of(family))
    encoder = tool_encoder()
    encoder.answer_opening = "<think>\n"  # as templates that begin the thinking of an answer themselves
    return Parser(encoder)


PARSERS = {family: parser_of(family) for family in FAMILIES}


def parts(message: ChatMessage) -> list[str]:
    return [text for text in (message.reasoning, message.content) if text]


def sampled(parser: Parser, text: str, stop: str) -> np.ndarray:
    """Tokens of an answer, which ends at the first that ends one, or that completes the stop string."""
    ids = parser.encoder.encode(text)
    for count in range(1, len(ids) + 1):
        if int(ids[count - 1]) in parser.encoder.ends.tokens or (stop and stop in parser.encoder.show(ids[:count])):
            return ids[:count]
    return ids


def generation(ids: np.ndarray) -> Generation:
    return Generation(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), "stop")


@settings(max_examples=200, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    words=st.lists(st.sampled_from(WORDS), max_size=12),
    tools=st.sampled_from([TOOLS, []]),
    stop=st.sampled_from(["", "\n\n", "words ", "aé", "</think>x", "'\""]),
    step=st.integers(1, 5),
)
def test_what_is_sent_early_is_the_beginning_of_the_answer(
    family: str, words: list[str], tools: list[Any], stop: str, step: int
) -> None:
    parser = PARSERS[family]
    stops = (stop,) if stop else ()
    ids = sampled(parser, "".join(words), stop)
    sampling = SamplingParams(99, stop_strings=stops, include_stop_string=False)
    (text,) = answer_texts(lambda answers: [parser.text(each) for each in answers], [generation(ids)], sampling)

    async def play() -> None:
        sent, progress = SentParts(), Progress(parser, tools, stops)
        for count in range(1, len(ids), step):
            progress.receive(0, generation(ids[:count]))
            for _, message in progress.messages():
                assert not message.calls
                list(sent.send(parts(message)))
        list(sent.send(parts(parser.parse(text, tools, "abcdefgh").message)))  # asserts it

    asyncio.run(play())


@pytest.mark.parametrize(
    ("family", "text", "reasoning", "content"),
    [
        ("hermes", "the box holds 7", "", "the box holds 7"),
        ("hermes", "I look. <tool_ca", "", "I look."),
        ("hermes", f"I look. {CALL} now", "", "I look."),
        ("hermes", "<think>so it", "so it", ""),
        ("hermes", "<think>so</think>\n\nyes", "so", "yes"),
        ("opened", "so</thi", "so", ""),
        ("llama", '{"name": "Bob"', "", ""),
        ("llama", "a { b", "", "a { b"),
        ("mistral", "yes [TOOL", "", "yes"),
        ("gpt-oss", "yes", "", ""),
    ],
)
def test_text_leaves_as_soon_as_no_mark_can_change_it(family: str, text: str, reasoning: str, content: str) -> None:
    settled = PARSERS[family].settled(text, TOOLS, ())
    assert (settled.reasoning, settled.content) == (reasoning, content)


def test_no_half_character_is_sent() -> None:
    ids = ENCODER.encode("a漢😀b")
    assert len(ids) > 6, "characters are of several tokens"

    async def texts() -> list[str]:
        progress, read = Progress(Parser(ENCODER), (), ()), []
        for count in range(1, len(ids) + 1):
            progress.receive(0, generation(ids[:count]))
            read += [message.content for _, message in progress.messages()]
        return read

    assert list(dict.fromkeys(asyncio.run(texts()))) == ["a", "a漢", "a漢😀", "a漢😀b"]


class Telling(Engine):
    """Tells its answers token by token, and waits before the last ones until the client has read something."""

    has_read: asyncio.Event

    async def __call__(self, request: GenerationRequest) -> list[Generation]:
        answers = await super().__call__(request)
        if request.on_tokens is not None:
            for count in range(1, answers[0].num_tokens - 3):
                for number, answer in enumerate(answers):
                    request.on_tokens(number, generation(answer.token_ids[:count]))
            await self.has_read.wait()
        return answers


def stream(said: str, play: Callable[[Place], Any], encoder: ChatEncoder = ENCODER) -> Any:
    async def begun(place: Place) -> Any:
        engine = Telling(encoder, lambda number: said)
        engine.has_read = asyncio.Event()
        place.session.generate = place.engine = engine
        return await play(place)

    return serve([said], begun, encoder=encoder)


SAID = "<think>Look into F.</think>\n\nI open 漢 <b>it</b>.\n" + CALL


async def chat(place: Place) -> tuple[Any, ...]:
    client, options = place.openai(), {"model": "m", "messages": ASK, "tools": TOOLS}
    thoughts, words, calls = "", "", ""
    async for chunk in await client.chat.completions.create(stream=True, **options):
        delta = chunk.choices[0].delta
        thoughts += getattr(delta, "reasoning_content", None) or ""
        words += delta.content or ""
        calls += "".join(call.function.arguments for call in delta.tool_calls or ())
        if thoughts and words:
            place.engine.has_read.set()  # type: ignore[attr-defined]
    message = (await client.chat.completions.create(**options)).choices[0].message
    assert (thoughts, words) == (message.reasoning_content, message.content)
    return thoughts, words, calls


async def responses(place: Place) -> tuple[Any, ...]:
    client = place.openai()
    tool = {"type": "function", "strict": False, **OPEN["function"]}
    words, numbers, kinds, last = "", [], [], None
    async for event in await client.responses.create(model="m", input="box F?", tools=[tool], stream=True):
        numbers.append(event.sequence_number)
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            words += event.delta
            place.engine.has_read.set()  # type: ignore[attr-defined]
        last = event
    assert numbers == list(range(len(numbers))) and kinds.count("response.output_item.done") == 3
    assert last is not None
    thought, message, call = last.response.output
    assert message.content[0].text == words
    return thought.content[0].text, words, call.arguments


async def messages(place: Place) -> tuple[Any, ...]:
    tool = {"name": "open", "input_schema": OPEN["function"]["parameters"]}
    async with place.anthropic().messages.stream(model="c", max_tokens=300, messages=ASK, tools=[tool]) as events:
        async for event in events:
            if event.type == "text":
                place.engine.has_read.set()  # type: ignore[attr-defined]
        last = await events.get_final_message()
    thought, words, call = last.content
    assert thought.signature
    return thought.thinking, words.text, '{"box": "F"}' if call.input == {"box": "F"} else call.input


@pytest.mark.parametrize("protocol", [chat, responses, messages])
def test_text_is_read_before_the_answer_has_ended(protocol: Any) -> None:
    assert stream(SAID, protocol) == ("Look into F.", "I open 漢 <b>it</b>.", '{"box": "F"}')


def test_nobody_tells_where_nobody_reads_along() -> None:
    async def play(place: Place) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
        create = place.openai().chat.completions.create
        await create(model="m", messages=ASK)
        async for _ in await create(model="m", messages=ASK, response_format=form, stream=True):
            pass
        assert [request.on_tokens for request in place.engine.requests] == [None, None]

    stream("{}", play)


def test_a_stream_that_is_left_frees_its_request() -> None:
    async def play(place: Place) -> None:
        place.session.retry_window_s = 0.0
        async for chunk in await place.openai().chat.completions.create(model="m", messages=ASK, stream=True):
            if chunk.choices[0].delta.content:
                break
        await place.open[0].close()
        await until(lambda: not place.session.is_waiting)
        assert not place.rows()

    stream("the box holds 7 and more", play)


def test_with_a_real_engine_the_first_words_come_before_the_last_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from roll.models.tiny import build_model, build_tokenizer, save_pretrained

    pytest.importorskip("openai")
    encoder = tool_encoder()
    folder = save_pretrained(tmp_path, build_model(build_tokenizer(), tie_word_embeddings=False), encoder.tokenizer)  # type: ignore[arg-type]
    has_read, num_steps = threading.Event(), 0
    step = BatchSampler.step

    def stepped(self: BatchSampler) -> Any:
        nonlocal num_steps
        num_steps += 1
        assert num_steps != 100 or has_read.wait(60), "nothing was read before token 100 of 120"
        return step(self)

    monkeypatch.setattr(BatchSampler, "step", stepped)

    class Here(WorkerHere):
        def __init__(self) -> None:
            config = role("hf_infer", folder, 1, {"max_model_len": 1024}, "fp32")
            path = strategy_class_path("hf_infer", "generate")
            self.worker = GenerateWorker(Blueprint("actor_infer", 0, 1, 0, 0, "cpu", path, config), 8)
            self.call: Any = self
            self.submitted: list[GenerationRequest] = []

    async def play() -> None:
        worker = Here()
        await worker.worker.setup()
        endpoint = Endpoint(encoder, EngineClient(Workers(worker)).generate)  # type: ignore[arg-type]
        await endpoint.start()
        rows: list[Any] = []
        words = ""
        for streams in (True, False):
            session = open_session(endpoint)
            greedy = SamplingParams(400, temperature=0.0, ignore_eos=True)
            session.rules = replace(session.rules, sampling=greedy)
            place = Place(endpoint, session, Engine(encoder, str))
            create = partial(place.openai(timeout=60).chat.completions.create, model="m", messages=ASK, max_tokens=120)
            if streams:
                async for chunk in await create(stream=True):
                    words += chunk.choices[0].delta.content or ""
                    if words:
                        has_read.set()
            else:
                assert (await create()).choices[0].message.content == words
            rows += place.rows()
            await place.open[0].close()
        told, whole = rows
        assert told.input_ids.tobytes() == whole.input_ids.tobytes() and told.response_mask.sum() == 120
        assert told.log_probs.tobytes() == whole.log_probs.tobytes()
        await endpoint.stop()
        await worker.worker.shutdown()

    asyncio.run(asyncio.wait_for(play(), 120))
