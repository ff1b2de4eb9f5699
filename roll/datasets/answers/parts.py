"""The parts of a message, and the words in which a chat template wants them.

A template is asked which parts it writes: each text of a conversation gives way to a mark of its own, and a mark that
is not in the template's text belongs to a part that the template leaves out. So it does not matter how a template
trims, escapes or orders what it writes.
"""

import html
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

Message = dict[str, Any]
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys under which templates expect an answer's reasoning: Qwen3 and GLM, gpt-oss, Gemma 4."""
_INLINE = re.compile(r"\s*(?:<think>|(?!.*<think>))(.*)</think>(.*)\Z", re.DOTALL)  # a prompt may have opened it
THINKING = re.compile(r"(</?think(?:ing)?>|\[/?THINK\])")


@dataclass(frozen=True)
class Part:
    """A text of a message. `message`: from 1; `mark`: what stands for it; `call`: of which call, from 1."""

    message: int
    name: str
    mark: str
    call: int = 0

    @property
    def label(self) -> str:
        of = f"call {self.call} of message {self.message}" if self.call else f"message {self.message}"
        return f"the {self.name} of {of}"


@dataclass(frozen=True)
class Wording:
    """How messages are put for a template.

    - `reasoning`: the name of the reasoning, None as it is
    - `texts`: arguments of calls as JSON texts
    - `null`: content None where a call stands alone; with this or `texts`, calls say that they are functions
    - `splits`: reasoning that an answer's content begins with has its own place
    - `composes`: as PromptedTurns.turn says
    """

    reasoning: str | None = None
    texts: bool = False
    null: bool = False
    splits: bool = False
    composes: bool = False

    def of(self, messages: Sequence[Message]) -> list[Message]:
        return [self._message(message) for message in messages]

    def _message(self, message: Message) -> Message:
        if (
            self.splits
            and message["role"] == "assistant"
            and (match := _INLINE.match(str(message.get("content") or "")))
        ):
            message = {**message, REASONING[0]: match[1].strip(), "content": match[2].lstrip()}
        held = reasoning_of(message)
        if held is not None and self.reasoning is not None:
            message = {key: value for key, value in message.items() if key not in REASONING}
            message[self.reasoning] = held[1]
        if message.get("tool_calls") and (self.texts or self.null):
            message = {**message, "tool_calls": [self._call(call) for call in message["tool_calls"]]}
            if self.null and not message.get("content"):
                message["content"] = None
        return message

    def _call(self, call: Any) -> Any:
        inner = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(inner, Mapping):
            return call
        function = dict(inner)
        if self.texts and not isinstance(function.get("arguments"), str):
            function["arguments"] = json.dumps(function.get("arguments"), ensure_ascii=False)
        return {"type": "function", **call, "function": function} if inner is not call else function


def wordings(messages: Sequence[Message]) -> Iterator[Wording]:
    """Wordings of the messages to try: first as they are, then the other forms that templates expect."""
    answers = [message for message in messages if message["role"] == "assistant"]
    calls = [message for message in answers if message.get("tool_calls")]
    alone = any(not message.get("content") for message in calls)
    inline = any(_INLINE.match(str(message.get("content") or "")) for message in answers)
    names = (None, *REASONING) if inline or any(map(reasoning_of, answers)) else (None,)
    switch, no = (False, True), (False,)
    for composes, splits, reasoning, texts, null in product(
        switch, switch if inline else no, names, switch if calls else no, switch if alone else no
    ):
        yield Wording(reasoning, texts, null, splits, composes)


def reasoning_of(message: Message) -> tuple[str, str] | None:
    """The name and the text of a message's reasoning."""
    candidates = (
        (name, message[name]) for name in REASONING if isinstance(message.get(name), str) and message[name].strip()
    )
    return next(candidates, None)


def thinks(message: Message) -> bool:
    """Whether an answer holds reasoning, beside its content or in it."""
    return reasoning_of(message) is not None or bool(THINKING.search(str(message.get("content") or "")))


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


def marked(messages: Sequence[Message]) -> tuple[list[Message], list[Part]]:
    """The messages with a mark for each of their texts and numbers, and which part each mark stands for."""
    parts: list[Part] = []
    result = []
    for place, message in enumerate(messages, 1):

        def mark(name: str, call: int = 0, kind: type = str, place: int = place) -> Any:
            number = 91_700_000 + len(parts)
            made = f"zq{number}x" if kind is str else kind(number)
            parts.append(Part(place, name, str(made), call))
            return made

        copy = dict(message)
        for key in ("content", *REASONING):
            copy = {**copy, key: _marked_text(message[key], key, mark)} if message.get(key) else copy
        if isinstance(calls := message.get("tool_calls"), list | tuple):
            copy["tool_calls"] = [_marked_call(call, number, mark) for number, call in enumerate(calls, 1)]
        result.append(copy)
    return result, parts


Mark = Callable[..., str]


def _marked_text(value: Any, name: str, mark: Mark) -> Any:
    """A text, or a list of parts of which some hold a text; what stands between marks of thinking is a text each."""
    if isinstance(value, list):
        return [{**part, "text": _marked_text(part["text"], name, mark)} if _has_text(part) else part for part in value]
    if not isinstance(value, str):
        return value
    pieces = THINKING.split(value)
    for place in range(0, len(pieces), 2):
        if inner := pieces[place].strip():
            pieces[place] = pieces[place].replace(inner, mark(name))
    return "".join(pieces)


def _has_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str) and bool(part["text"].strip())


def _marked_call(call: Any, number: int, mark: Mark) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(inner := call.get("function"), Mapping):
        return {**call, "function": _marked_call(inner, number, mark)}
    copy = {**call, "name": mark("name", number)} if isinstance(call.get("name"), str) else dict(call)
    if "arguments" in call:
        copy["arguments"] = _marked_value(call["arguments"], "argument", number, mark)
    return copy


def _marked_value(value: Any, name: str, number: int, mark: Mark) -> Any:
    """Arguments with marks for names and values, at any depth."""
    if isinstance(value, Mapping):
        return {
            mark(f"name of argument {key!r}", number): _marked_value(inner, f"argument {key!r}", number, mark)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_marked_value(inner, name, number, mark) for inner in value]
    if type(value) in (int, float) or (isinstance(value, str) and value.strip()):
        return mark(name, number, type(value))
    return value


def leaves_out(content: str, answer: str) -> bool:
    """Whether a text, but for white space and marks of thinking, is not in what a template writes of it."""
    written = _squeezed(answer)
    return any(
        not any(_squeezed(form) in written for form in (piece, *_escaped(piece)))
        for piece in THINKING.split(content)[::2]
        if piece.strip()
    )


def _escaped(text: str) -> Iterator[str]:
    """The forms in which a text stands in JSON and in HTML."""
    for ascii_only in (False, True):
        yield json.dumps(text, ensure_ascii=ascii_only)[1:-1]
    yield html.escape(text)


def _squeezed(text: str) -> str:
    return "".join(text.split())
