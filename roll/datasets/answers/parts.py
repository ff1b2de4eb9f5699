"""The parts of a message, in which words a chat template wants them, and which of them it writes."""

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

Message = dict[str, Any]
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys under which templates expect an answer's reasoning: Qwen3 and GLM, gpt-oss, Gemma 4."""
_INLINE = re.compile(r"\s*(?:<think>|(?!.*<think>))(.*)</think>(.*)\Z", re.DOTALL)  # a prompt may have opened it
THINKING = re.compile(r"(</?think(?:ing)?>|\[/?THINK\])")


@dataclass(frozen=True)
class Wording:
    """How messages are put for a template.

    - `reasoning`: the name of the reasoning, None as it is
    - `splits`: reasoning that an answer's content begins with has its own place
    - `composes`: as PromptedTurns.turn says
    """

    reasoning: str | None = None
    splits: bool = False
    composes: bool = False

    def of(self, messages: Sequence[Message]) -> list[Message]:
        return [self._message(message) if message["role"] == "assistant" else message for message in messages]

    def _message(self, message: Message) -> Message:
        if self.splits and (match := _INLINE.match(_content(message))):
            message = {**message, REASONING[0]: match[1].strip(), "content": match[2].lstrip()}
        held = reasoning_of(message)
        if held is None or self.reasoning is None:
            return message
        return {**{key: message[key] for key in message if key not in REASONING}, self.reasoning: held[1]}


def wordings(messages: Sequence[Message]) -> Iterator[Wording]:
    """Wordings of the messages to try: first as they are, then the other forms that templates expect."""
    answers = [message for message in messages if message["role"] == "assistant"]
    inline = any(_INLINE.match(_content(message)) for message in answers)
    names = (None, *REASONING) if inline or any(map(reasoning_of, answers)) else (None,)
    for composes, splits, reasoning in product((False, True), (False, True) if inline else (False,), names):
        yield Wording(reasoning, splits, composes)


def _content(message: Message) -> str:
    return str(message.get("content") or "")


def reasoning_of(message: Mapping[str, Any]) -> tuple[str, str] | None:
    """The name and the text of a message's reasoning."""
    candidates = (
        (name, message[name]) for name in REASONING if isinstance(message.get(name), str) and message[name].strip()
    )
    return next(candidates, None)


def thinks(message: Message) -> bool:
    """Whether an answer holds reasoning, beside its content or in it."""
    return reasoning_of(message) is not None or bool(THINKING.search(_content(message)))


def shape_of(value: Any) -> Any:
    """Return everything that templates may branch on: keys, types, emptiness, roles, marks of thinking; not the
    words."""
    if isinstance(value, Mapping):
        return tuple((key, value[key] if key == "role" else shape_of(value[key])) for key in value)
    if isinstance(value, list | tuple):
        return tuple(map(shape_of, value))
    if isinstance(value, str):
        return bool(value.strip()), tuple(THINKING.findall(value))
    return value if isinstance(value, bool) else type(value).__name__


def unwritten(message: Mapping[str, Any], text: str) -> str | None:
    """Name the part of a message that is not in the text that a template made of it; None if all are: its content, its
    reasoning, and the names and arguments of its calls."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    written = _Written(text)
    if not all(written.has(part.get("text")) for part in parts):
        return "the content"
    reasoning = reasoning_of(message)
    if reasoning is not None and not written.has(reasoning[1]):
        return f"the {reasoning[0]}"
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    names = [str(call.get("name")) for call in calls]
    for number, (name, call) in enumerate(zip(names, calls, strict=True), start=1):
        if text.count(name) < names[:number].count(name):
            return f"call {number}" if any(other in text for other in names) else "the calls"
        arguments = call.get("arguments")
        for key, value in arguments.items() if isinstance(arguments, Mapping) else ():
            if key not in text or not written.has(value):
                return f"the argument {key!r} of call {number}"
    return None


class _Written:
    """Looks for texts in what a template wrote, but for white space and marks of thinking, as they are or escaped."""

    def __init__(self, text: str):
        self._text, self._squeezed = text, ""

    def has(self, value: Any) -> bool:
        pieces = [piece.strip() for piece in THINKING.split(value)[::2]] if isinstance(value, str) else []
        return all(piece in self._text or self._has_squeezed(piece) for piece in pieces)

    def _has_squeezed(self, piece: str) -> bool:
        self._squeezed = self._squeezed or _squeezed(self._text)
        in_json = (json.dumps(piece, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
        return any(_squeezed(form) in self._squeezed for form in (piece, *in_json, html.escape(piece)))


def _squeezed(text: str) -> str:
    return "".join(text.split())
