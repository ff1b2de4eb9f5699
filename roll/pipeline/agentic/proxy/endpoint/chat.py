"""OpenAI's chat completions: a request's body as a call, and a reply as JSON or as events."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from roll.configs.tables.sight import VisionModel
from roll.datasets.media import A_PICTURE, part_medium
from roll.datasets.messages import clean_messages
from roll.datasets.pictures.decode import measure
from roll.datasets.pictures.forms import PicturePlaces, pictures_in
from roll.datasets.shown import READABLE
from roll.errors import ConfigError, PictureError
from roll.pipeline.agentic.proxy.endpoint.errors import Refusal
from roll.pipeline.agentic.proxy.endpoint.fields import Body
from roll.pipeline.agentic.proxy.endpoint.session import MOST_SAMPLES, Exchange, Reply
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, SYSTEM, TOOL, Call, ChatCall, ChatMessage, Tool
from roll.pipeline.agentic.proxy.transcript.parse import Parser
from roll.pipeline.agentic.proxy.transcript.tree import Answer
from roll.types.media import Picture

_FINISH = {"stop": "stop", "length": "length"}


class ChatBody(Body):
    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str = ""
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    n: int | None = Field(None, ge=1, le=MOST_SAMPLES)
    logprobs: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None


def read_chat(body: ChatBody, vision: VisionModel | None = None) -> ChatCall:
    """Raises Refusal for what this endpoint does not do."""
    tools, left_out = readable_tools(body.tools or ())
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return ChatCall(
        messages=read_messages(body.messages, vision),
        tools=() if body.tool_choice == "none" else tools,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=tuple(text for text in stop if text),
        n=body.n or 1,
        ignored=body.ignored(left_out, body.tool_choice),
    )


def readable_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[tuple[Tool, ...], list[str]]:
    """The tools that the policy can be shown, {type: function, function: {name, description, parameters}} each; and the
    names of those without such a function, which run on the servers of others or are known to other models alone.
    Raises Refusal."""
    shown: list[Tool] = []
    left_out: list[str] = []
    for tool in tools:
        inner = tool.get("function")
        if (kind := tool.get("type", "function")) != "function":
            left_out.append(str(tool.get("name") or kind))
            continue
        if not (isinstance(inner, Mapping) and inner.get("name") and isinstance(inner["name"], str)):
            raise Refusal(400, "tools: each is {type: function, function: {name, description, parameters}}.",
                          "unsupported", "tools")  # fmt: skip
        inner = {key: value for key, value in inner.items() if key != "cache_control"}
        shown.append({"type": "function", "function": inner})
    return tuple(shown), left_out


def read_messages(messages: list[dict[str, Any]], vision: VisionModel | None = None) -> tuple[ChatMessage, ...]:
    """`vision`: how the policy sees, if it does. Raises Refusal for what no chat template takes, by its place."""
    with_content = [{"content": "", **m} if m.get("role") in (ASSISTANT, TOOL) else m for m in messages]
    with_content = [{**m, "content": ""} if m.get("content", "") is None else m for m in with_content]
    try:
        for number, message in enumerate(messages, start=1):
            _check_parts(message.get("content"), f"message {number}", vision)
        cleaned = clean_messages(with_content, parses=False, shows=True)
        return tuple(_message(message, vision, number) for number, message in enumerate(cleaned, start=1))
    except (TypeError, ValueError, KeyError, ConfigError, PictureError) as error:
        raise Refusal(400, f"messages: {error}", param="messages") from None


def _check_parts(content: Any, at: str, vision: VisionModel | None) -> None:
    for part in content if isinstance(content, list) else ():
        medium = part_medium(part) if isinstance(part, Mapping) else None
        if medium == A_PICTURE and vision is None:
            raise ValueError(f"{at} shows a picture, and the model of this run reads text only. Send text, or train a "
                             "model that sees (docs/pictures.md)")  # fmt: skip
        if medium not in (None, A_PICTURE):
            raise ValueError(f"{at} shows {medium}, which the policy cannot be shown. Send text or pictures")


def _message(message: Mapping[str, Any], vision: VisionModel | None, number: int) -> ChatMessage:
    role = SYSTEM if message["role"] == "developer" else message["role"]
    reasoning = next((message[name] for name in ("reasoning_content", "reasoning") if message.get(name)), "")
    calls = tuple(
        Call(
            call["function"]["name"],
            arguments if isinstance(arguments := call["function"].get("arguments") or "{}", str)
            else json.dumps(arguments, ensure_ascii=False),
            str(call.get("id") or ""),
        )
        for call in message.get("tool_calls") or ()
    )  # fmt: skip
    shown = [message["content"]] if isinstance(message["content"], str) else message["content"]
    parts = tuple(
        _picture(part["image"], vision, f"message {number}") if isinstance(part, Mapping) and part["type"] == "image"
        else (part if isinstance(part, str) else part["text"]).encode("utf-8", "replace").decode()
        for part in shown
    )  # fmt: skip
    is_answer = role == ASSISTANT
    return ChatMessage(
        role,
        "".join(part if isinstance(part, str) else READABLE for part in parts),
        str(reasoning) if is_answer else "",
        calls if is_answer else (),
        "" if is_answer else str(message.get("tool_call_id") or ""),
        "" if is_answer else str(message.get("name") or ""),
        parts if any(isinstance(part, Picture) for part in parts) else (),
    )


def _picture(part: Any, vision: VisionModel | None, at: str) -> Picture:
    """The picture, of which the header is read; its pixels are decoded when an engine is asked. Nothing but what the
    request holds is opened."""
    sources = pictures_in(part, at, "", PicturePlaces())
    if vision is None or len(sources) != 1 or sources[0].form != "inline":
        raise ValueError(f"{at}: send each picture as a data URL (data:image/png;base64,...)")
    return measure(sources[0], vision.sizes)


def content_of(parts: Sequence[str | Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of a message from texts and parts that show pictures: one text where none does."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "".join(texts)
    return [{"type": "text", "text": part} if isinstance(part, str) else dict(part) for part in parts]


def picture_part(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


class ChatWire:
    """Replies to one request."""

    def __init__(self, body: ChatBody, parser: Parser, reply_id: str):
        self._body, self._parser = body, parser
        self._base = {"id": f"chatcmpl-{reply_id}", "created": int(time.time()), "model": body.model or "policy"}

    def reply(self, reply: Reply) -> dict[str, Any]:
        choices = [
            {
                "index": i,
                "message": self._message(answer),
                "finish_reason": _finish(answer),
                "logprobs": self._log_probs(answer),
            }
            for i, answer in enumerate(reply.answers)
        ]
        return {**self._base, "object": "chat.completion", "choices": choices, "usage": _usage(reply)}

    def begin(self, exchange: Exchange) -> Iterator[str]:
        """The first lines of a stream, while nothing is sampled yet."""
        for i in range(self._body.n or 1):
            yield self._event(i, {"role": ASSISTANT, "content": ""})

    def events(self, reply: Reply) -> Iterator[str]:
        """The other lines, made from the whole answer."""
        for i, answer in enumerate(reply.answers):
            message = answer.message
            for name, text in (("reasoning_content", message.reasoning), ("content", message.content)):
                if text:
                    yield self._event(i, {name: text})
            for place, call in enumerate(message.calls):
                yield self._event(i, {"tool_calls": [{"index": place, **_call(call)}]})
            yield self._event(i, {}, _finish(answer), self._log_probs(answer))
        if (self._body.stream_options or {}).get("include_usage"):
            yield _line({**self._base, "object": "chat.completion.chunk", "choices": [], "usage": _usage(reply)})
        yield "data: [DONE]\n\n"

    def ping(self) -> str:
        return ": waiting\n\n"

    def error(self, refusal: Refusal) -> str:
        return _line(refusal.openai())

    def _event(self, index: int, delta: dict[str, Any], finish: str | None = None, log_probs: Any = None) -> str:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": log_probs}
        return _line({**self._base, "object": "chat.completion.chunk", "choices": [choice]})

    def _message(self, answer: Answer) -> dict[str, Any]:
        message = answer.message
        fields: dict[str, Any] = {"role": ASSISTANT, "content": message.content or (None if message.calls else "")}
        if message.reasoning:
            fields["reasoning_content"] = message.reasoning
        if message.calls:
            fields["tool_calls"] = [_call(call) for call in message.calls]
        return fields

    def _log_probs(self, answer: Answer) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        show, generation = self._parser.encoder.show, answer.generation
        tokens = []
        for place, log_prob in enumerate(generation.log_probs.tolist()):
            text = show(generation.token_ids[place : place + 1])
            tokens.append({"token": text, "logprob": log_prob, "bytes": list(text.encode()), "top_logprobs": []})
        return {"content": tokens, "refusal": None}


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _finish(answer: Answer) -> str:
    reason = _FINISH.get(answer.generation.finish_reason, "stop")
    return "tool_calls" if answer.message.calls and reason == "stop" else reason


def _usage(reply: Reply) -> dict[str, int]:
    sampled = reply.num_sampled
    return {
        "prompt_tokens": reply.num_prompt,
        "completion_tokens": sampled,
        "total_tokens": reply.num_prompt + sampled,
    }


def _line(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
