"""Prompts, answers and episodes as conversations: who says what, what is thought, which tools are called."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from pydantic import BaseModel, ValidationError

from roll.pipeline.agentic.proxy.transcript.causes import CAUSES
from roll.pipeline.agentic.proxy.transcript.harmony import read_harmony
from roll.run.records.replay import Recorded, RecordedPicture, RecordedTurn
from roll.utils.thinking import opened, parted

USER, SYSTEM, ASSISTANT, TOOL, ENVIRONMENT, PROMPT = "user", "system", "assistant", "tool", "environment", "prompt"
_WITNESS = "witness"  # what the recorder calls the broken prefixes of an episode


class BrokenPrefix(BaseModel):
    """A place where a program's request no longer followed what was sampled: `was` and `now` are the texts behind
    `before`, from the first token that differs. `turn` counts from 1; 0 where it was not recorded."""

    message: int
    at_token: int
    cause: str
    before: str = ""
    was: str = ""
    now: str = ""
    turn: int = 0

    @property
    def why(self) -> str:
        return CAUSES.get(self.cause, self.cause)


@dataclass(frozen=True)
class Message:
    """A message of a conversation. `note`: what came of it, such as an action and its reward. `breaks`: prefixes that
    the request for it broke."""

    role: str
    text: str
    thinking: str = ""
    calls: Sequence[tuple[str, str]] = ()
    pictures: Sequence[RecordedPicture] = ()
    note: str = ""
    breaks: Sequence[BrokenPrefix] = ()


# Prompts, which hold a conversation in the form of a chat template.

_NAME = r"(system|developer|user|assistant|model|tool|ipython|observation)"
_HEAD = re.compile(
    rf"<\|im_start\|>{_NAME}|<\|start_header_id\|>{_NAME}<\|end_header_id\|>|<start_of_turn>{_NAME}|<\|turn>{_NAME}"
    rf"|<\|start\|>{_NAME}(?:(?:<\|channel\|>\w+)?<\|message\|>)?|<\|{_NAME}\|>|<｜(User|Assistant)｜>"
    r"|<\|im_(system|user|assistant)\|>(?P<named>[^<|>]*)<\|im_middle\|>|\[/(INST)\]|\[(INST)\]"
)
_HARMONY_HEAD = re.compile(rf"<\|start\|>(?:{_NAME}|(?P<tool>[\w.-]+)(?=[^<]*(?:<\|channel\|>[^<]*)?<\|message\|>))")
_SPECIAL = re.compile(
    r"<\|[^|<>]{1,40}\|>|</?s>|</?(?:start|end)_of_turn>|<\|?turn\|?>|<bos>|\[/?(?:INST|SYSTEM_PROMPT)\]|\[gMASK\]|<sop>"
    r"|<｜[^｜<>]{1,40}｜>"
)
_ROLES = {"model": ASSISTANT, "observation": TOOL, "ipython": TOOL, "INST": USER, "/INST": ASSISTANT}
_OF_SYSTEM = ("system", "tool_declare", "")


def messages_of_prompt(prompt: str) -> list[Message]:
    """The messages of a prompt by the marks of its chat template, without those; one message where none is known. The
    beginning of an answer that the prompt ends with is left out.

    Example: "<|im_start|>system\\nBe brief.<|im_end|>\\n<|im_start|>user\\n2 + 2?<|im_end|>\\n<|im_start|>assistant\\n"
    has two messages, of the system and the user.
    """
    is_harmony = prompt.lstrip().startswith("<|start|>") and "<|message|>" in prompt
    heads = list((_HARMONY_HEAD if is_harmony else _HEAD).finditer(prompt))
    if not heads:
        return [Message(PROMPT, _SPECIAL.sub(" ", prompt).strip())]
    ends = [head.start() for head in heads[1:]] + [len(prompt)]
    parts = [(SYSTEM, prompt[: heads[0].start()])]
    parts += [(_role(head), prompt[head.end() : end]) for head, end in zip(heads, ends, strict=True)]
    if is_harmony:
        return _harmony_messages(parts)
    if parts[-1][0] == ASSISTANT:
        parts.pop()
    messages = [Message(role, text) for role, text in parts]
    return _shown(_parted(message) if message.role == ASSISTANT else message for message in messages)


def _role(head: re.Match[str]) -> str:
    """The role of a message's mark. Kimi K2 has a name beside it: tools speak as the system, under theirs."""
    found = head.groupdict()
    if found.get("tool"):
        return TOOL
    name = "/INST" if head[0] == "[/INST]" else next(filter(None, head.groups()))
    if found.get("named") is not None and name == SYSTEM and found["named"] not in _OF_SYSTEM:
        return TOOL
    return _ROLES.get(name, name.lower())


def _harmony_messages(parts: Sequence[tuple[str, str]]) -> list[Message]:
    """The messages of gpt-oss's template: what the assistant says on several channels in a row is one."""
    messages: list[Message] = []
    for role, run in groupby(parts, key=itemgetter(0)):
        texts = [text for _, text in run]
        if role == ASSISTANT and any(_CHANNEL in text for text in texts):
            texts = texts if texts[-1] else texts[:-1]  # without the beginning of an answer
            messages.append(_parted(Message(role, "".join(f"<|start|>assistant{text}" for text in texts))))
        else:
            messages += [Message(role, text.partition("<|message|>")[2]) for text in texts]
    return _shown(messages)


def _shown(messages: Iterable[Message]) -> list[Message]:
    """Return the messages that say something, without marks of the template."""
    messages = [replace(message, text=_SPECIAL.sub(" ", message.text).strip()) for message in messages]
    return [message for message in messages if message.text or message.calls or message.thinking]


def question_of(prompt: str) -> str:
    """Return what the user said last in a prompt; all of it where no template is known."""
    messages = messages_of_prompt(prompt)
    said = [message.text for message in messages if message.role == USER]
    return said[-1] if said else "\n".join(message.text for message in messages)


# Answers.

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_KIMI_CALL = re.compile(
    r"<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[^<\s]*?)(?::\d+)?\s*<\|tool_call_argument_begin\|>"
    r"(?P<arguments>.*?)(?:<\|tool_call_end\|>|\Z)|<\|tool_calls_section_(?:begin|end)\|>",
    re.DOTALL,
)
_CHANNEL = "<|channel|>"


def message_of_answer(text: str, prompt: str = "") -> Message:
    """An answer by its parts. `prompt`: may have opened its thinking.

    Example: "<think>why</think>yes" has the text "yes" and the thinking "why".
    """
    return _parted(Message(ASSISTANT, opened(prompt, text) if prompt else text))


def _parted(message: Message) -> Message:
    if _CHANNEL in message.text:
        with suppress(ValueError):  # a header that is not whole
            thinking, text, calls = read_harmony(message.text)
            shown = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
            return replace(message, text=text.strip(), thinking=thinking.strip(), calls=shown)
    thinking, text = parted(message.text)
    calls = [_call(match[1].strip()) for match in _CALL.finditer(text)]
    calls += [(match["name"], match["arguments"].strip()) for match in _KIMI_CALL.finditer(text) if match["name"]]
    text = _KIMI_CALL.sub("", _CALL.sub("", text))
    return replace(message, text=text.strip(), thinking=thinking.strip(), calls=calls)


def _call(text: str) -> tuple[str, str]:
    """Name and arguments of a call in JSON; of another form all of it, without a name."""
    try:
        call = json.loads(text)
        arguments = call["arguments"]
        return str(call["name"]), arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", text


# Episodes.


def episode_of(record: Recorded) -> list[Message]:
    """The messages of all turns; a failed attempt may have none. A break of a request that got no answer stands at the
    last turn."""
    breaks = broken_prefixes(record.extra)
    messages = []
    for number, turn in enumerate(record.turns, 1):
        here = [each for each in breaks if min(each.turn, len(record.turns)) == number]
        *before, answer = _of_turn(turn)
        if before and turn.pictures:
            before[-1] = replace(before[-1], pictures=turn.pictures)
        messages += [*before, replace(answer, note=_note(number, turn), breaks=here)]
    return messages


def _of_turn(turn: RecordedTurn) -> Iterator[Message]:
    if not turn.said:
        yield Message(ENVIRONMENT, turn.observation)
        yield message_of_answer(turn.response)
        return
    for said in turn.said:
        yield Message(said.role, said.text, said.thinking, said.calls)


def _note(number: int, turn: RecordedTurn) -> str:
    """Example: "turn 2: action left, reward 1, success 1"."""
    parts = [f"action {turn.action}"] if turn.action is not None else [] if turn.said else ["no action"]
    shown = {"reward": turn.reward} if turn.reward or _TIME not in turn.metrics else {}
    shown |= {name: value for name, value in turn.metrics.items() if name not in _APART and value is not None}
    return f"turn {number}: {', '.join([*parts, *(f'{name} {value:.4g}' for name, value in shown.items())])}".rstrip(
        ": "
    )


@dataclass(frozen=True)
class Request:
    """A turn of a program's session. `depth`: how often its conversation parted from that of the turns before; `says`:
    the tools that it calls, or the beginning of its text."""

    turn: int
    depth: int
    says: str
    prompt_tokens: float
    tokens: float
    time_s: float
    reward: float


_TIME = "time_s"
_APART = ("answer_cut", "after", "prompt_tokens", "tokens", _TIME)  # metrics of turns that no note has
_MOST_SAID = 80


def requests_of(record: Recorded) -> list[Request]:
    """The turns of a session as a tree, in the order of requests; none for other episodes."""
    requests: list[Request] = []
    depths: dict[int, int] = {}
    continued: set[int] = set()
    for number, turn in enumerate(record.turns if all(_TIME in turn.metrics for turn in record.turns) else (), 1):
        after = int(turn.metrics.get("after") or 0)
        depths[number] = depths.get(after, 0) + (after in continued)
        continued.add(after)
        *_, answer = _of_turn(turn)
        says = ", ".join(name for name, _ in answer.calls) or answer.text[:_MOST_SAID]
        prompt, tokens, time_s = (turn.metrics.get(name) or 0.0 for name in ("prompt_tokens", "tokens", _TIME))
        requests.append(Request(number, depths[number], says, prompt, tokens, time_s, turn.reward))
    return requests


def broken_prefixes(extra: Mapping[str, Any]) -> list[BrokenPrefix]:
    """The broken prefixes that an episode recorded; none where they are of another form."""
    try:
        return [BrokenPrefix.model_validate(each) for each in extra.get(_WITNESS, [])]
    except (ValidationError, TypeError):
        return []


def other_extras(record: Recorded) -> dict[str, Any]:
    """Return what a reward or an episode says beside its score, without what is shown in another way."""
    breaks = broken_prefixes(record.extra)
    is_shown = breaks and record.turns and all(each.turn for each in breaks)
    return {name: value for name, value in record.extra.items() if name != _WITNESS or not is_shown}
