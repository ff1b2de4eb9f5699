"""Parsing of a model's answer into a message: its thinking, its text and its tool calls, by transformers' response
templates."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from roll.pipeline.agentic.proxy.transcript.harmony import HARMONY, read_harmony, writes_harmony
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, Call, ChatMessage, Tool
from roll.pipeline.agentic.sample_forms import ChatEncoder

_OPENING = "<|im_start|>assistant\n"  # what the templates below begin an answer with; any other mark would do
_THINKING = {"open": "<think>", "close": "</think>", "content": "text"}
_TEXT = {"content": "text"}


def _form(calls: Mapping[str, Any], thinks: bool = True) -> dict[str, Any]:
    """A response template with these calls."""
    thinking = {"thinking": _THINKING} if thinks else {}
    fields = {**thinking, "tool_calls": calls, "content": _TEXT}
    return {"defaults": {"role": ASSISTANT}, "start_anchor": _OPENING, "fields": fields}


HERMES = _form(
    {
        "open_pattern": r"\s*<tool_call>",
        "close": "</tool_call>",
        "repeats": True,
        "content": "json",
        "transform": {"type": "function", "function": "{content}"},
    }
)
"""Qwen2.5, Qwen3, Hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""
QWEN_XML = _form(
    {
        "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
        "close_pattern": r"</function>\s*</tool_call>",
        "repeats": True,
        "content": "xml-inline",
        "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    }
)
"""Qwen3.5 and Qwen3-Coder: <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>."""
GLM = _form(
    {
        "open_pattern": r"\s*<tool_call>\s*(?P<name>[^<\s]+)\s*",
        "close": "</tool_call>",
        "repeats": True,
        "content": "xml-inline",
        "content_args": {
            "tag_pattern": r"<arg_key>\s*(?P<key>.*?)\s*</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"
        },
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    }
)
"""GLM-4.5 and later: <tool_call>NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>, </tool_call>."""
MISTRAL = _form({"open_pattern": r"\[TOOL_CALLS\]\s*(?=\[)", "close_pattern": r"\Z", "content": "json"})
"""Mistral's first form: [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]."""
MISTRAL_ARGS = _form(
    {
        "open_pattern": r"\[TOOL_CALLS\](?P<name>[^\[\]{}]+?)(?:\[CALL_ID\][^\[\]]*)?\[ARGS\]",
        "close_pattern": r"(?=\[TOOL_CALLS\])|\Z",
        "repeats": True,
        "content": "json",
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    }
)
"""Mistral since 2025: [TOOL_CALLS]NAME[ARGS]{...} for each call."""
LLAMA = _form(
    {
        "open_pattern": r"\A\s*(?:<\|python_tag\|>)?\s*(?=\{\s*\"name\")",
        "close_pattern": r"\Z",
        "content": "json",
        "transform": {"type": "function", "function": "{content}"},
    },
    thinks=False,
)
"""Llama-3.1 and later: an answer that is {"name": ..., "parameters": {...}}."""
_OPENED, _CLOSED, _LISTED = "<tool_call>", "</tool_call>", "[TOOL_CALLS]"
_MARKS = ("<think>", "</think>", _OPENED, _LISTED, "{")  # without any of them an answer is text


@dataclass(frozen=True)
class Parsed:
    """`is_malformed`: there was a call that cannot be read; its text is in the message as it was said."""

    message: ChatMessage
    is_malformed: bool = False


@dataclass(frozen=True)
class Parser:
    encoder: ChatEncoder

    @cached_property
    def template(self) -> Mapping[str, Any] | None:
        """How calls are written; None where no form is known that the chat template writes."""
        if template := getattr(self.encoder.tokenizer, "response_template", None):
            return template
        source = self.encoder.template_source
        if writes_harmony(source):
            return HARMONY
        if _OPENED in source:
            return GLM if "<arg_key>" in source else QWEN_XML if "<function=" in source else HERMES
        if _LISTED in source:
            return MISTRAL_ARGS if "[ARGS]" in source else MISTRAL
        return LLAMA if "tool_calls" in source and '"parameters": ' in source else None

    @property
    def takes_tools(self) -> bool:
        return self.template is not None and "tools" in self.encoder.template_source

    def text(self, ids: np.ndarray) -> str:
        """The answer with the special tokens in it, which may mark calls, without the one that ends it."""
        ended = len(ids) and int(ids[-1]) in self.encoder.ends.tokens
        return self.encoder.show(ids[:-1] if ended else ids)

    def parse(self, text: str, tools: Sequence[Tool], prefix: str) -> Parsed:
        """`prefix`: of the ids of the calls."""
        text = self.encoder.answer_opening + text
        plain = Parsed(ChatMessage(ASSISTANT, self._visible(text)))
        if self.template is HARMONY:
            return self._harmony(text, prefix) or Parsed(plain.message, is_malformed=True)
        schema: Mapping[str, Any] | None = self.template if tools else HERMES
        if schema is None or not ("<think>" in text or "</think>" in text or tools):
            return plain
        if not tools and schema is HERMES:
            schema = {**HERMES, "fields": {"thinking": _THINKING, "content": _TEXT}}
        said = text.rpartition("</think>")[2]
        if schema.get("start_anchor") == _OPENING:
            if not any(mark in text for mark in _MARKS):
                return plain
            if tools and said.count(_OPENED) > said.count(_CLOSED):  # it was cut
                return Parsed(plain.message, is_malformed=True)
        try:
            parsed: Any = self.encoder.tokenizer.parse_response(
                text, dict(schema), prefix=_OPENING, tools=[dict(tool) for tool in tools] or None
            )
            found = parsed.get("tool_calls") or ()
            found = [found] if isinstance(found, Mapping) else found
            calls = tuple(_call(call, f"{prefix}{i}") for i, call in enumerate(found))
        except Exception:  # it raises ValueError, KeyError and others of what is no call
            return Parsed(plain.message, is_malformed=True)
        if tools and not calls and schema.get("start_anchor") == _OPENING and (_OPENED in said or _LISTED in said):
            return Parsed(plain.message, is_malformed=True)
        content = str(parsed.get("content") or "")
        before = _before_calls(text)
        if calls and before and before not in content:
            content = f"{before}{content}"
        return Parsed(ChatMessage(ASSISTANT, self._visible(content), str(parsed.get("thinking") or ""), calls))

    def _harmony(self, text: str, prefix: str) -> Parsed | None:
        """The answer on its channels; None if it cannot be read."""
        try:
            answer = read_harmony(text)
            said = ({"name": name, "arguments": arguments} for name, arguments in answer.calls)
            calls = tuple(_call(call, f"{prefix}{i}") for i, call in enumerate(said))
        except ValueError:
            return None
        return Parsed(ChatMessage(ASSISTANT, self._visible(answer.content), self._visible(answer.reasoning), calls))

    def _visible(self, text: str) -> str:
        return self.special.sub("", text) if self.special.pattern else text

    @cached_property
    def special(self) -> re.Pattern[str]:
        """The tokenizer's special tokens as texts."""
        names = (str(self.encoder.tokenizer.convert_ids_to_tokens(token)) for token in self.encoder.ends.special)
        return re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)))


def _before_calls(text: str) -> str:
    """Return the text between the thinking and the first call: the parser keeps only the text behind the last one."""
    said = text.rpartition("</think>")[2]
    places = [said.index(mark) for mark in (_OPENED, _LISTED) if mark in said]
    return said[: min(places)].strip() if places else ""


def _call(parsed: Mapping[str, Any], call_id: str) -> Call:
    inner = parsed.get("function", parsed)
    name, arguments = inner["name"], inner.get("arguments", inner.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call is a name and a mapping of arguments")
    call = Call(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False), call_id)
    f"{call.name}{call.canonical}".encode()  # raises for a lone surrogate, which no reply can hold
    return call
