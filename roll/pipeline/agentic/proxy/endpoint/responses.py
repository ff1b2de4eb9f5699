"""OpenAI's responses: a request's body as a call, and a reply as JSON or as events."""

import base64
import binascii
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from roll.pipeline.agentic.proxy.endpoint.chat import (
    content_of,
    must_call,
    picture_part,
    read_messages,
    readable_tools,
    schema_of,
)
from roll.pipeline.agentic.proxy.endpoint.errors import Refusal
from roll.pipeline.agentic.proxy.endpoint.fields import Body
from roll.pipeline.agentic.proxy.endpoint.progress import SentParts
from roll.pipeline.agentic.proxy.endpoint.session import Exchange, Reply, Session
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, SYSTEM, TOOL, USER, Call, ChatCall, ChatMessage

_LOG_PROBS = "message.output_text.logprobs"
# The order of one response's items: a later item that does not come after belongs to the next response.
_REASONING, _MESSAGE, _CALL = range(3)
_NAMES = ("reasoning_text", "output_text", "function_call_arguments")


class ResponsesBody(Body):
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    model: str = ""
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    stream: bool | None = None


def read_responses(body: ResponsesBody, session: Session) -> ChatCall:
    """The call, behind the earlier response that the body names. Raises Refusal for what this endpoint does not do."""
    form = (body.text or {}).get("format")
    if form is not None and not isinstance(form, Mapping):
        raise Refusal(400, "text.format: it is no object.", param="text")
    if _LOG_PROBS in (body.include or ()):
        raise Refusal(400, f"include: {_LOG_PROBS} is not supported: ask for logprobs in chat completions.",
                      "unsupported", "include")  # fmt: skip
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
        must_call=must_call(tools, body.tool_choice),
        schema=schema_of(form, "text.format"),
        max_tokens=body.max_output_tokens,
        others=body.others(left_out),
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
    last, number = -1, ""
    for place, item in enumerate(items):
        kind = item.get("type") or "message"
        if (rank := _rank(kind, item.get("role"))) is not None:
            own = _number(item)
            if answer and (rank < last or rank == last != _CALL or (own and number and own != number)):
                yield answer
                answer = {}
            last, number = rank, own
            answer = answer or {"role": ASSISTANT, "content": ""}
            _add(answer, rank, item, place)
            continue
        if answer:
            yield answer
            answer = {}
        if kind == "message":
            yield {"role": item.get("role"), "content": _content(item.get("content"), place)}
        elif kind == "function_call_output":
            output = "" if item.get("output", "none") is None else _content(item.get("output"), place)
            yield {"role": TOOL, "tool_call_id": item.get("call_id") or "", "content": output}
        else:
            raise _unknown(place, f"an item of type {kind!r}")
    if answer:
        yield answer


def _number(item: Mapping[str, Any]) -> str:
    """Return the response that an item of this endpoint belongs to; "" if its id does not tell."""
    kind, _, rest = str(item.get("id") or "").partition("_")
    return rest.partition("_")[0] if kind in ("rs", "msg", "fc") else ""


def _rank(kind: str, role: Any) -> int | None:
    """Place of an item in a response; None for what is no part of one."""
    if kind == "message":
        return _MESSAGE if role == ASSISTANT else None
    return {"reasoning": _REASONING, "function_call": _CALL}.get(kind)


def _add(answer: dict[str, Any], rank: int, item: Mapping[str, Any], place: int) -> None:
    if rank == _REASONING:
        answer["reasoning_content"] = _thought(item, place)
    elif rank == _MESSAGE:
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
        parts = [{**part, "type": "text"} if isinstance(part, Mapping) else part for part in item["content"]]
        return str(_content(parts, place))
    try:
        return base64.b64decode(item.get("encrypted_content") or "", validate=True).decode()
    except (binascii.Error, ValueError, TypeError):
        raise Refusal(400, f"input[{place}]: this reasoning is not of this endpoint.", param="input") from None


class ResponsesWire:
    """Replies to one request. A reply has the same id whenever it is sent, and the session keeps what it ends."""

    def __init__(self, body: ResponsesBody, session: Session):
        self._body, self._session, self._created_at = body, session, int(time.time())
        self._sent, self._number, self._response_id = SentParts(), 0, ""

    def reply(self, reply: Reply) -> dict[str, Any]:
        (answer,) = reply.answers
        response_id = self._id(answer.request)
        begin = 1 if self._body.instructions else 0  # instructions are of their own request alone
        self._session.responses[response_id] = answer.history[begin:]
        is_cut = answer.generation.finish_reason == "length"
        return self._response(response_id) | {
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [item for _, item in _items(answer.message, response_id)],
            "usage": _usage(reply),
        }

    def _id(self, request: int) -> str:
        return f"resp_{self._session.session_id[-8:]}{request}"

    def _response(self, response_id: str) -> dict[str, Any]:
        """The response before anything is sampled."""
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
        self._response_id = self._id(exchange.request)
        begun = self._response(self._response_id)
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", {"response": begun})

    def grown(self, number: int, message: ChatMessage) -> Iterator[str]:
        """Events of what is new of the answer, of which this is the beginning."""
        if message.reasoning or message.content:
            yield from self._changes(list(_items(message, self._response_id)))

    def events(self, reply: Reply) -> Iterator[str]:
        """The other events, made from the whole answer: item by item."""
        whole, items = self.reply(reply), list(_items(reply.answers[0].message, self._response_id))
        yield from self._changes(items)
        yield from self._done(items, len(items) - 1)
        yield self._event(f"response.{whole['status']}", {"response": whole})

    def _changes(self, items: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[str]:
        texts = [item["arguments"] if kind == _CALL else item["content"][0]["text"] for kind, item in items]
        for index, text in self._sent.send(texts):
            if text is None and index:
                yield from self._done(items, index - 1)
            kind, item = items[index]
            for name, values in _begun(kind, item) if text is None else [_delta(kind, item, text)]:
                yield self._event(f"response.{name}", {"output_index": index, **values})

    def _done(self, items: Sequence[tuple[int, dict[str, Any]]], index: int) -> Iterator[str]:
        for name, values in _ended(*items[index]):
            yield self._event(f"response.{name}", {"output_index": index, **values})

    def _event(self, kind: str, values: Mapping[str, Any]) -> str:
        self._number += 1
        data = {"type": kind, "sequence_number": self._number - 1, **values}
        return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"

    def ping(self) -> str:
        return ": waiting\n\n"

    def error(self, refusal: Refusal) -> Iterator[str]:
        error = refusal.openai()["error"]
        yield self._event("error", {**error, "type": "error"})


def _items(message: ChatMessage, response_id: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The output: what the policy thought, what it said, and what it calls."""
    number = response_id.removeprefix("resp_")
    if message.reasoning:
        content = [{"type": "reasoning_text", "text": message.reasoning}]
        sealed = base64.b64encode(message.reasoning.encode("utf-8", "replace")).decode()
        yield _REASONING, {"id": f"rs_{number}", "type": "reasoning", "summary": [], "content": content,
                           "encrypted_content": sealed, "status": "completed"}  # fmt: skip
    if message.content or not message.calls:
        text = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        yield _MESSAGE, {"id": f"msg_{number}", "type": "message", "role": ASSISTANT, "status": "completed",
                         "content": [text]}  # fmt: skip
    for place, call in enumerate(message.calls):
        yield _CALL, _call(call, f"fc_{number}_{place}")


def _call(call: Call, item_id: str) -> dict[str, Any]:
    return {"id": item_id, "type": "function_call", "call_id": call.call_id, "name": call.name,
            "arguments": call.arguments, "status": "completed"}  # fmt: skip


Event = tuple[str, dict[str, Any]]


def _begun(kind: int, item: dict[str, Any]) -> Iterator[Event]:
    """The events with which an item begins."""
    empty = {_CALL: {"arguments": ""}, _REASONING: {"content": [], "encrypted_content": None}}.get(
        kind, {"content": []}
    )
    yield "output_item.added", {"item": {**item, **empty, "status": "in_progress"}}
    if kind != _CALL:
        yield "content_part.added", {**_at(kind, item), "part": {**item["content"][0], "text": ""}}


def _delta(kind: int, item: dict[str, Any], text: str) -> Event:
    return f"{_NAMES[kind]}.delta", {**_at(kind, item), "delta": text, **_more(kind)}


def _ended(kind: int, item: dict[str, Any]) -> Iterator[Event]:
    """The events with which an item ends."""
    at = _at(kind, item)
    if kind == _CALL:
        yield f"{_NAMES[kind]}.done", {**at, "arguments": item["arguments"], "name": item["name"]}
    else:
        (part,) = item["content"]
        yield f"{_NAMES[kind]}.done", {**at, "text": part["text"], **_more(kind)}
        yield "content_part.done", {**at, "part": part}
    yield "output_item.done", {"item": item}


def _at(kind: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"item_id": item["id"], **({} if kind == _CALL else {"content_index": 0})}


def _more(kind: int) -> dict[str, Any]:
    return {"logprobs": []} if kind == _MESSAGE else {}


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.num_prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.num_sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.num_prompt + reply.num_sampled,
    }
