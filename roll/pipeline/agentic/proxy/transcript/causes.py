"""Why a request does not continue what its session has sampled, in words a program's author understands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, SYSTEM, ChatCall, ChatMessage

CAUSES: Mapping[str, str] = {
    "tools_changed": "the tools changed",
    "system_changed": "the system prompt changed",
    "thinking_dropped": "the program dropped the thinking of a response",
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
    return place, _of_pair(old[place], new[place], old[place + 1 :])


def _of_pair(was: ChatMessage, now: ChatMessage, later: Sequence[ChatMessage]) -> str:
    """Why `now` stands where `was` stood, and `later` followed."""
    if SYSTEM in (was.role, now.role):
        return "system_changed"
    if any(one.key == now.key for one in later):
        return "history_trimmed"
    if was.role != now.role:
        return "foreign_answer" if now.role == ASSISTANT else "message_edited"
    if was.role != ASSISTANT:
        return "message_edited"
    is_dropped = bool(was.reasoning) and replace(was, reasoning="").key == now.key
    return "thinking_dropped" if is_dropped else "answer_edited"
