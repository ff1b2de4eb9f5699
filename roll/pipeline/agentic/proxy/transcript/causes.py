"""Why a request does not continue what its session has sampled, in words a program's author understands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, SYSTEM, ChatCall, ChatMessage

CAUSES: Mapping[str, str] = {
    "tools_changed": "the tools changed",
    "system_changed": "the system prompt changed",
    "thinking_dropped": "the program dropped the thinking of a response",
    "tool_call_rerendered": "the program wrote a tool call in another way",
    "whitespace": "the program changed white space",
    "history_trimmed": "the program left earlier messages out",
    "answer_edited": "the program changed a response",
    "message_edited": "the program changed an earlier message",
    "foreign_answer": "it contains a message of the assistant that was not sampled",
    "template": "the chat template itself writes earlier messages in another way",
}


@dataclass(frozen=True)
class Break:
    """The point at which a request no longer follows what was sampled.

    - `at_token`: the first token of its prompt that differs
    - `before`: the characters in front of it
    - `was`, `now`: the old and the new text there
    """

    request: int
    message: int
    at_token: int
    cause: str
    before: str = ""
    was: str = ""
    now: str = ""

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def text(self) -> str:
        return (
            f"request {self.request}: {CAUSES[self.cause]} (message {self.message + 1}, token {self.at_token}: was "
            f"{self.was!r}, is {self.now!r})"
        )


def cause_of(
    old: Sequence[ChatMessage], old_root: bytes, call: ChatCall, is_only_rendering: bool = False
) -> tuple[int, str]:
    """The place of the first message that differs from the path of `old`, and why; the last message and `template`
    where all of them are the same."""
    new = call.messages
    if call.root != old_root:
        return 0, "tools_changed"
    place = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a.key != b.key), min(len(old), len(new)))
    if is_only_rendering or place >= len(new):
        return min(place, len(new) - 1), "template"
    if place >= len(old):
        return place, "foreign_answer" if new[place].role == ASSISTANT else "template"
    return place, _of_pair(old[place], new[place], old[place:], new[place:])


def _of_pair(was: ChatMessage, now: ChatMessage, olds: Sequence[ChatMessage], news: Sequence[ChatMessage]) -> str:
    if was.role != now.role:
        if SYSTEM in (was.role, now.role):
            return "system_changed"
        if _is_left_out(now, olds):
            return "history_trimmed"
        return "foreign_answer" if now.role == ASSISTANT else "message_edited"
    if was.role == ASSISTANT:
        if _same_calls(was, now) and _squeezed(was.content) == _squeezed(now.content):
            if was.reasoning and not now.reasoning:
                return "thinking_dropped"
            if _strict_calls(was) != _strict_calls(now):
                return "tool_call_rerendered"
            if _squeezed(was.reasoning) == _squeezed(now.reasoning):
                return "whitespace"
        return "history_trimmed" if _is_left_out(now, olds) else "answer_edited"
    if was.name == now.name and _squeezed(was.content) == _squeezed(now.content):
        return "whitespace"
    if was.role == SYSTEM:
        return "system_changed"
    return "history_trimmed" if _is_left_out(now, olds) else "message_edited"


def _is_left_out(now: ChatMessage, olds: Sequence[ChatMessage]) -> bool:
    """Whether the message stood later in the old conversation."""
    return any(old.key == now.key for old in olds[1:])


def _strict_calls(message: ChatMessage) -> list[tuple[str, str]]:
    return [(call.name, call.canonical) for call in message.calls]


def _same_calls(was: ChatMessage, now: ChatMessage) -> bool:
    """Equal but for the order of calls, spacing, and numbers that became texts."""

    def loose(message: ChatMessage) -> list[tuple[str, str]]:
        return sorted((call.name, _squeezed(call.canonical).replace('"', "")) for call in message.calls)

    return loose(was) == loose(now)


def _squeezed(text: str) -> str:
    return "".join(text.split())
