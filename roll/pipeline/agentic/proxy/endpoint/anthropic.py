"""Anthropic's messages: a request's body as a call, and a reply as JSON or as events."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from roll.configs.tables.sight import VisionModel
from roll.pipeline.agentic.proxy.endpoint.chat import (
    content_of,
    picture_part,
    read_messages,
    readable_tools,
)
from roll.pipeline.agentic.proxy.endpoint.errors import Refusal
from roll.pipeline.agentic.proxy.endpoint.fields import Body
from roll.pipeline.agentic.proxy.endpoint.session import Exchange, Reply
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, SYSTEM, TOOL, USER, ChatCall, ChatMessage
from roll.pipeline.agentic.proxy.transcript.tree import Answer

_BILLING = "x-anthropic-billing-header"  # Claude Code's, which differs at every request
_SIGNATURE = "roll"


class MessagesBody(Body):
    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str = ""
    max_tokens: int | None = Field(None, ge=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None


def read_anthropic(body: MessagesBody, vision: VisionModel | None = None) -> ChatCall:
    """Raises Refusal for what this endpoint does not do."""
    choice = (body.tool_choice or {}).get("type", "auto")
    tools, left_out = readable_tools([_tool(tool) for tool in body.tools or ()])
    messages = [*_system(body.system), *(one for message in body.messages for one in _messages(message))]
    return ChatCall(
        messages=read_messages(messages, vision),
        tools=() if choice == "none" else tools,
        max_tokens=body.max_tokens,
        stop=tuple(text for text in body.stop_sequences or () if text),
        ignored=body.ignored(left_out, choice),
    )


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if (tool.get("type") or "custom") != "custom":
        return tool
    inner = {
        "name": tool.get("name"),
        "description": tool.get("description") or "",
        "parameters": tool.get("input_schema") or {},
    }
    return {"type": "function", "function": inner}


def _system(system: str | Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    texts = [system] if isinstance(system, str) else [str(block.get("text", "")) for block in system or ()]
    text = "\n".join(text for text in texts if text and not text.startswith(_BILLING))
    return [{"role": SYSTEM, "content": text}] if text else []


def _messages(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A message of blocks in order: each tool result is a message of its own, texts between them stay together."""
    role, content = message.get("role"), message.get("content")
    if role not in (USER, ASSISTANT, SYSTEM):
        raise Refusal(400, f"messages: the role {role!r} is neither user nor assistant.", param="messages")
    if isinstance(content, str):
        yield {"role": role, "content": content}
    elif role == ASSISTANT:
        yield _answer(_blocks([] if content is None else content))
    else:
        yield from _said(str(role), _blocks(content))


def _said(role: str, blocks: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    parts: list[str | Mapping[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            if parts:
                yield {"role": role, "content": content_of(parts)}
                parts = []
            yield {
                "role": TOOL,
                "tool_call_id": block.get("tool_use_id", ""),
                "content": content_of(_parts_in(block.get("content"))),
            }
        else:
            parts += _parts_of(block)
    if parts:
        yield {"role": role, "content": content_of(parts)}


def _answer(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts: list[str | Mapping[str, Any]] = []
    thoughts, calls = [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        elif kind == "tool_use":
            inner = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {}, ensure_ascii=False)}
            calls.append({"id": block.get("id", ""), "type": "function", "function": inner})
        elif kind != "redacted_thinking":  # of another model, whose text nobody can read
            parts += _parts_of(block)
    message: dict[str, Any] = {"role": ASSISTANT, "content": content_of(parts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _blocks(content: Any) -> list[Mapping[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, Mapping) for block in content):
        raise Refusal(400, "messages: content is a text or a list of blocks.", param="messages")
    return content


def _parts_in(content: Any) -> list[str | Mapping[str, Any]]:
    if isinstance(content, str) or content is None:
        return [content or ""]
    return [part for block in _blocks(content) for part in _parts_of(block)]


def _parts_of(block: Mapping[str, Any]) -> list[str | Mapping[str, Any]]:
    kind, text, source = block.get("type", "text"), block.get("text"), block.get("source")
    form = source.get("type") if isinstance(source, Mapping) else None
    if kind == "text" and isinstance(text, str):
        return [text]
    if isinstance(source, Mapping) and kind == "document" and form in ("text", "content"):
        named = [f"{block[name]}\n" for name in ("title", "context") if block.get(name)]
        return [*named, *_parts_in(source.get("data" if form == "text" else "content")), "\n"]
    if isinstance(source, Mapping) and kind == "image":
        is_inline = form == "base64"
        url = f"data:{source.get('media_type')};base64,{source.get('data')}" if is_inline else str(source.get("url"))
        return [picture_part(url)]
    raise Refusal(400, f"messages: a block of type {kind!r} is not supported; text, images, documents as text, "
                  "tool_use, tool_result and thinking are.", "unsupported", "messages")  # fmt: skip


class AnthropicWire:
    """Replies to one request."""

    def __init__(self, body: MessagesBody, reply_id: str):
        self._model, self._id = body.model or "policy", f"msg_{reply_id}"

    def reply(self, reply: Reply) -> dict[str, Any]:
        (answer,) = reply.answers
        return {
            **self._begun(reply.num_prompt, reply.num_sampled),
            "content": [_finished(block) for block in _parts(answer.message)],
            "stop_reason": _stop_reason(answer),
            "stop_sequence": answer.stopped_by or None,
        }

    def begin(self, exchange: Exchange) -> Iterator[str]:
        """The first event of a stream, while nothing is sampled yet."""
        begun = {**self._begun(exchange.num_prompt, 0), "content": [], "stop_reason": None}
        yield _event("message_start", {"message": begun})

    def events(self, reply: Reply) -> Iterator[str]:
        """The other events, made from the whole answer: block by block."""
        (answer,) = reply.answers
        for index, (kind, value) in enumerate(_parts(answer.message)):
            yield _event("content_block_start", {"index": index, "content_block": _empty(kind, value)})
            text = value.arguments if kind == "tool_use" else value
            field = {"thinking": "thinking", "text": "text", "tool_use": "partial_json"}[kind]
            deltas = [{"type": "input_json_delta" if kind == "tool_use" else f"{kind}_delta", field: text}]
            if kind == "thinking":
                deltas.append({"type": "signature_delta", "signature": _SIGNATURE})
            for delta in deltas:
                yield _event("content_block_delta", {"index": index, "delta": delta})
            yield _event("content_block_stop", {"index": index})
        delta = {"stop_reason": _stop_reason(answer), "stop_sequence": answer.stopped_by or None}
        yield _event("message_delta", {"delta": delta, "usage": {"output_tokens": reply.num_sampled}})
        yield _event("message_stop", {})

    def ping(self) -> str:
        return _event("ping", {})

    def error(self, refusal: Refusal) -> str:
        return _event("error", refusal.anthropic())

    def _begun(self, num_prompt: int, num_sampled: int) -> dict[str, Any]:
        usage = {"input_tokens": num_prompt, "output_tokens": num_sampled}
        return {
            "id": self._id,
            "type": "message",
            "role": ASSISTANT,
            "model": self._model,
            "stop_sequence": None,
            "usage": usage,
        }


def _parts(message: ChatMessage) -> list[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = [("thinking", message.reasoning)] if message.reasoning else []
    if message.content or not (message.calls or message.reasoning):
        parts.append(("text", message.content))
    return parts + [("tool_use", call) for call in message.calls]


def _finished(part: tuple[str, Any]) -> dict[str, Any]:
    kind, value = part
    if kind == "thinking":
        return {"type": kind, "thinking": value, "signature": _SIGNATURE}
    if kind == "text":
        return {"type": kind, "text": value}
    return {"type": kind, "id": value.call_id, "name": value.name, "input": json.loads(value.arguments)}


def _empty(kind: str, value: Any) -> dict[str, Any]:
    if kind == "tool_use":
        return {"type": kind, "id": value.call_id, "name": value.name, "input": {}}
    return {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}


def _stop_reason(answer: Answer) -> str:
    if answer.generation.finish_reason == "length":
        return "max_tokens"
    if answer.stopped_by:
        return "stop_sequence"
    return "tool_use" if answer.message.calls else "end_turn"


def _event(kind: str, values: Mapping[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **values}, ensure_ascii=False)}\n\n"
