"""Messages of a program's conversation in one form, whichever protocol brought them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from roll.types.media import Picture

ASSISTANT, SYSTEM, TOOL, USER = "assistant", "system", "tool", "user"
Tool = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """A tool call. `arguments`: JSON text, as it stands on the wire."""

    name: str
    arguments: str
    call_id: str = ""

    @cached_property
    def canonical(self) -> str:
        """The arguments without their spacing and the order of their keys; what is no JSON stays as it is."""
        try:
            return json.dumps(json.loads(self.arguments or "{}"), sort_keys=True, ensure_ascii=False)
        except ValueError:
            return self.arguments

    def for_template(self) -> dict[str, Any]:
        try:
            arguments: Any = json.loads(self.arguments or "{}")
        except ValueError:
            arguments = self.arguments
        return {
            "id": self.call_id,
            "type": "function",
            "function": {"name": self.name, "arguments": arguments if isinstance(arguments, dict) else self.arguments},
        }


@dataclass(frozen=True)
class ChatMessage:
    """One message. `calls` and `reasoning` are of the assistant; `call_id` says which call a tool's result answers.
    `parts`: what it shows, in order, where some of it are pictures."""

    role: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    name: str = ""
    parts: tuple[str | Picture, ...] = ()

    @property
    def pictures(self) -> list[Picture]:
        return [part for part in self.parts if isinstance(part, Picture)]

    @cached_property
    def key(self) -> bytes:
        """Equal for messages that say the same: call ids, and spacing and order in arguments, do not count. The name
        of who speaks counts, since templates may write it."""
        calls = [(call.name, call.canonical) for call in self.calls]
        shown = [part if isinstance(part, str) else [part.digest] for part in self.parts]
        return _digest([self.role, self.content, self.reasoning, calls, self.name, shown])

    def for_template(self) -> dict[str, Any]:
        shown = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in self.parts]
        message: dict[str, Any] = {"role": self.role, "content": shown or self.content}
        if self.reasoning:
            message["reasoning_content"] = message["thinking"] = self.reasoning  # gpt-oss reads the latter
        if self.calls:
            message["tool_calls"] = [call.for_template() for call in self.calls]
        if self.call_id:
            message["tool_call_id"] = self.call_id
        if self.name:
            message["name"] = self.name
        return message


@dataclass(frozen=True)
class ChatCall:
    """Request for a chat answer.

    - `tools`: those that are shown to the policy
    - `max_tokens`, `stop`: they narrow what the run allows
    - `ignored`: names of what the request says and does nothing
    - `side`: who asks, where a session has several
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    ignored: tuple[str, ...] = ()
    side: str = ""

    @cached_property
    def num_characters(self) -> int:
        """Characters of messages and tools, of which a chat template shows no fewer, as a rule."""
        said = sum(
            len(m.content) + len(m.reasoning) + sum(len(call.arguments) for call in m.calls) for m in self.messages
        )
        return said + len(json.dumps(self.tools, ensure_ascii=False))

    @cached_property
    def root(self) -> bytes:
        return _digest(list(self.tools))

    @cached_property
    def chain(self) -> tuple[bytes, ...]:
        """A key for each message, of it and all before it."""
        return chained(self.root, self.messages)


def chained(before: bytes, messages: Sequence[ChatMessage]) -> tuple[bytes, ...]:
    keys: list[bytes] = []
    for message in messages:
        before = hashlib.blake2b(before + message.key, digest_size=16).digest()
        keys.append(before)
    return tuple(keys)


def _digest(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
