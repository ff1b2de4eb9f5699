"""Parsing of a model's answer into a message: its thinking, its text and its tool calls."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from roll.pipeline.agentic.proxy.transcript.argument_values import JSON_DECODER
from roll.pipeline.agentic.proxy.transcript.forms import HARMONY, CallForm, SaidCall, form_of
from roll.pipeline.agentic.proxy.transcript.harmony import read_harmony
from roll.pipeline.agentic.proxy.transcript.message import ASSISTANT, Call, ChatMessage, Tool
from roll.pipeline.agentic.sample_forms import ChatEncoder

_BEGIN, _END = "<think>", "</think>"
_THINKING = re.compile(rf"\s*{_BEGIN}(?P<thinking>.*?)(?:{_END}|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Parsed:
    """`is_malformed`: there was a call that cannot be read; its text is in the message as it was said."""

    message: ChatMessage
    is_malformed: bool = False


@dataclass(frozen=True)
class Parser:
    encoder: ChatEncoder

    @cached_property
    def form(self) -> CallForm | None:
        return form_of(self.encoder.template_source)

    @property
    def description(self) -> Mapping[str, Any] | None:
        """The tokenizer's own description of its answers, which transformers follows: for other forms."""
        return None if self.form else getattr(self.encoder.tokenizer, "response_template", None)

    @property
    def takes_tools(self) -> bool:
        return bool(self.form or self.description) and "tools" in self.encoder.template_source

    def text(self, ids: np.ndarray) -> str:
        """The answer with the special tokens in it, which may mark calls, without the one that ends it."""
        ended = len(ids) and int(ids[-1]) in self.encoder.ends.tokens
        return self.encoder.show(ids[:-1] if ended else ids)

    def parse(self, text: str, tools: Sequence[Tool], prefix: str) -> Parsed:
        """`prefix`: of the ids of the calls."""
        text = self.encoder.answer_opening + text
        try:
            thinking, content, said = self._read(text, tools)
            calls = tuple(_call(name, arguments, f"{prefix}{i}") for i, (name, arguments) in enumerate(said))
        except Exception:  # transformers raises ValueError, KeyError and others of what is no call
            thinking, content, calls = "", text, ()
            if (thought := _THINKING.match(text)) is not None:
                thinking, content = thought["thinking"].strip(), text[thought.end() :].strip()
            message = ChatMessage(ASSISTANT, self._visible(content), self._visible(thinking))
            return Parsed(message, is_malformed=True)
        return Parsed(ChatMessage(ASSISTANT, self._visible(content), self._visible(thinking), calls))

    def _read(self, text: str, tools: Sequence[Tool]) -> tuple[str, str, Sequence[SaidCall]]:
        """Thinking, text and calls. Raises whatever says that they cannot be told apart."""
        if self.form is HARMONY:
            return read_harmony(text)
        if tools and self.description:
            return self._described(text, tools)
        thought = _THINKING.match(text)
        said = text[thought.end() :] if thought else text
        content, calls = self.form.read(said, tools) if self.form and tools else (said, [])
        if thought is None and not calls:
            return "", text, ()
        thinking = thought["thinking"].strip() if thought else ""
        if self.form and tools and not said and self.form.mark and self.form.mark in thinking:
            raise ValueError("thinking that does not end before a call")
        return thinking, content.strip(), calls

    def _described(self, text: str, tools: Sequence[Tool]) -> tuple[str, str, Sequence[SaidCall]]:
        """The same as the tokenizer's own description has it."""
        found: Any = self.encoder.tokenizer.parse_response(
            text, dict(self.description or {}), prefix="", tools=[dict(tool) for tool in tools]
        )
        calls = found.get("tool_calls") or ()
        calls = [calls] if isinstance(calls, Mapping) else calls
        functions = [call.get("function", call) for call in calls]
        said = [(each["name"], each.get("arguments", each.get("parameters", {}))) for each in functions]
        return str(found.get("thinking") or ""), str(found.get("content") or ""), said

    def _visible(self, text: str) -> str:
        return self.special.sub("", text) if self.special.pattern else text

    @cached_property
    def special(self) -> re.Pattern[str]:
        names = [str(self.encoder.tokenizer.convert_ids_to_tokens(token)) for token in self.encoder.ends.special]
        return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))


def _call(name: Any, arguments: Any, call_id: str) -> Call:
    if isinstance(arguments, str):
        arguments = JSON_DECODER.decode(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call is a name and a mapping of arguments")
    call = Call(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False), call_id)
    f"{call.name}{call.canonical}".encode()  # raises for a lone surrogate, which no reply can hold
    return call
