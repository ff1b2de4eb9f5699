"""OpenAI's responses: a request's body as a call, and a reply as JSON or as events."""

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from roll.pipeline.agentic.proxy.endpoint.chat import (
    content_of,
    picture_part,
    read_messages,
    readable_tools,
)
from roll.pipeline.agentic.proxy.endpoint.errors import Refusal
from roll.pipeline.agentic.proxy.endpoint.fields import Body
from roll.pipeline.agentic.proxy.endpoint.session import Exchange, Reply, Session
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, SYSTEM, TOOL, USER, ChatCall, ChatMessage

_RANKS = {"reasoning": 0, "message": 1, "function_call": 2}
"""The order of one response's items: a later item that does not come after belongs to the next response."""


class ResponsesBody(Body):
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    model: str = ""
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    stream: bool | None = None


def read_responses(body: ResponsesBody, session: Session) -> ChatCall:
    """The call, behind the earlier response that the body names. Raises Refusal for what this endpoint does not do."""
    earlier = ()
    if body.previous_response_id is not None:
        if body.previous_response_id not in session.responses:
            raise Refusal(400, f"previous_response_id: this session gave no response {body.previous_response_id!r}.",
                          "previous_response_not_found", "previous_response_id")  # fmt: skip
        earlier = session.responses[body.previous_response_id]
    instructions = (ChatMessage(SYSTEM, body.instructions),) if body.instructions else ()
    items = [{"role": USER, "content": body.input}] if isinstance(body.input, str) else body.input
    messages = read_messages(list(_messages(items)), session.vision) if items else ()
    if not (earlier or messages):
        raise Refusal(400, "input: it is empty.", param="input")
    tools, left_out = readable_tools([_tool(tool) for tool in body.tools or ()])
    return ChatCall(
        messages=(*instructions, *earlier, *messages),
        tools=() if body.tool_choice == "none" else tools,
        max_tokens=body.max_output_tokens,
        ignored=body.ignored(left_out, body.tool_choice),
    )


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if tool.get("type") != "function":
        return tool
    inner = {"name": tool.get("name"), "description": tool.get("description") or "",
             "parameters": tool.get("parameters") or {}}  # fmt: skip
    return {"type": "function", "function": inner}


def _messages(items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Messages of chat. The items of one response, its reasoning, its text and its calls, are one message."""
    answer: dict[str, Any] = {}
    last = -1
    for place, item in enumerate(items):
        kind, role = item.get("type") or "message", item.get("role")
        rank = _RANKS.get(kind) if kind != "message" or role == ASSISTANT else None
        if answer and (rank is None or rank < last or rank == last != _RANKS["function_call"]):
            yield answer
            answer = {}
        if rank is not None:
            last = rank
            answer = answer or {"role": ASSISTANT, "content": ""}
            _add(answer, kind, item, place)
        elif kind == "message":
            yield {"role": role, "content": _content(item.get("content"), place)}
        elif kind == "function_call_output":
            output = item.get("output")
            shown = "" if output is None else _content(output, place)
            yield {"role": TOOL, "tool_call_id": item.get("call_id") or "", "content": shown}
        else:
            raise _unknown(place, f"an item of type {kind!r}")
    if answer:
        yield answer


def _add(answer: dict[str, Any], kind: str, item: Mapping[str, Any], place: int) -> None:
    if kind == "reasoning":
        answer["reasoning_content"] = _thought(item, place)
    elif kind == "message":
        answer["content"] = _content(item.get("content"), place)
    else:
        inner = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
        call = {"id": item.get("call_id") or "", "type": "function", "function": inner}
        answer.setdefault("tool_calls", []).append(call)


def _content(content: Any, place: int) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        raise Refusal(400, f"input[{place}]: a text or a list of parts is needed.", param="input")
    parts: list[str | Mapping[str, Any]] = []
    for part in content:
        kind = part.get("type")
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind == "input_image":
            parts.append(picture_part(part.get("image_url")))
        elif kind in ("input_text", "output_text", "text", "refusal") and isinstance(text, str):
            parts.append(text)
        else:
            raise _unknown(place, f"a part of type {kind!r}")
    return content_of(parts)


def _unknown(place: int, what: str) -> Refusal:
    return Refusal(400, f"input[{place}]: {what} is not supported; texts, pictures, function calls, their outputs and "
                   "reasoning are.", "unsupported", "input")  # fmt: skip


def _thought(item: Mapping[str, Any], place: int) -> str:
    """The reasoning of an item, which clients that store nothing send back in its encrypted form alone."""
    if item.get("content"):
        return "".join(str(part.get("text", "")) for part in item["content"])
    try:
        return base64.b64decode(item.get("encrypted_content") or "", validate=True).decode()
    except ValueError:
        raise Refusal(400, f"input[{place}]: this reasoning is not of this endpoint.", param="input") from None


class ResponsesWire:
    """Replies to one request. A reply has the same id whenever it is sent, and the session keeps what it ends."""

    def __init__(self, body: ResponsesBody, session: Session):
        self._body, self._session, self._created_at = body, session, int(time.time())
        self._number = 0

    def reply(self, reply: Reply) -> dict[str, Any]:
        (answer,) = reply.answers
        response_id = self._id(answer.request)
        begin = 1 if self._body.instructions else 0  # instructions are of their own request alone
        self._session.responses[response_id] = answer.history[begin:]
        is_cut = answer.generation.finish_reason == "length"
        return self._response(response_id) | {
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": list(_items(answer.message, response_id)),
            "usage": _usage(reply),
        }

    def _id(self, request: int) -> str:
        return f"resp_{self._session.session_id[-8:]}{request}"

    def _response(self, response_id: str) -> dict[str, Any]:
        return {
            "id": response_id,
            "object": "response",
            "created_at": self._created_at,
            "status": "in_progress",
            "incomplete_details": None,
            "error": None,
            "instructions": self._body.instructions,
            "model": self._body.model or "policy",
            "previous_response_id": self._body.previous_response_id,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": self._body.tool_choice or "auto",
            "tools": self._body.tools or [],
            "metadata": {},
            "temperature": None,
            "top_p": None,
            "usage": None,
        }

    def begin(self, exchange: Exchange) -> Iterator[str]:
        """The first events of a stream, while nothing is sampled yet."""
        begun = self._response(self._id(exchange.request))
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", {"response": begun})

    def events(self, reply: Reply) -> Iterator[str]:
        """The other events, made from the whole answer: item by item."""
        whole = self.reply(reply)
        for index, item in enumerate(whole["output"]):
            for name, values in _item_events(item):
                yield self._event(f"response.{name}", {"output_index": index, **values})
        yield self._event(f"response.{whole['status']}", {"response": whole})

    def _event(self, kind: str, values: Mapping[str, Any]) -> str:
        self._number += 1
        data = {"type": kind, "sequence_number": self._number - 1, **values}
        return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"

    def ping(self) -> str:
        return ": waiting\n\n"

    def error(self, refusal: Refusal) -> str:
        error = refusal.openai()["error"]
        return self._event("error", {**error, "type": "error"})


def _items(message: ChatMessage, response_id: str) -> Iterator[dict[str, Any]]:
    number = response_id.removeprefix("resp_")
    if message.reasoning:
        content = [{"type": "reasoning_text", "text": message.reasoning}]
        sealed = base64.b64encode(message.reasoning.encode("utf-8", "replace")).decode()
        yield {"id": f"rs_{number}", "type": "reasoning", "summary": [], "content": content,
               "encrypted_content": sealed, "status": "completed"}  # fmt: skip
    if message.content or not message.calls:
        text = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        yield {"id": f"msg_{number}", "type": "message", "role": ASSISTANT, "status": "completed", "content": [text]}
    for place, call in enumerate(message.calls):
        yield {"id": f"fc_{number}_{place}", "type": "function_call", "call_id": call.call_id, "name": call.name,
               "arguments": call.arguments, "status": "completed"}  # fmt: skip


def _item_events(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    at, is_call = {"item_id": item["id"]}, item["type"] == "function_call"
    empty = {"arguments": ""} if is_call else {"content": []}
    yield "output_item.added", {"item": {**item, **empty, "status": "in_progress"}}
    part = None if is_call else item["content"][0]
    if part is None:
        name, text = "function_call_arguments", item["arguments"]
        ending = {"arguments": text, "name": item["name"]}
    else:
        at, name, text = at | {"content_index": 0}, part["type"], part["text"]
        ending = {"text": text} | ({} if name == "reasoning_text" else {"logprobs": []})
        yield "content_part.added", {**at, "part": {**part, "text": ""}}
    if text:
        yield f"{name}.delta", {**at, "delta": text} | ({"logprobs": []} if name == "output_text" else {})
    yield f"{name}.done", {**at, **ending}
    if part is not None:
        yield "content_part.done", {**at, "part": part}
    yield "output_item.done", {"item": item}


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.num_prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.num_sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.num_prompt + reply.num_sampled,
    }
