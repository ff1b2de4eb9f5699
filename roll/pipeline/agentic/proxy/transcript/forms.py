"""The forms in which families of models write tool calls: one table, and how its rows are read."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from roll.pipeline.agentic.proxy.transcript.argument_values import JSON_DECODER, argument_value
from roll.pipeline.agentic.proxy.transcript.message import Tool

SaidCall = tuple[Any, Any]
"""Name and arguments, as they were said."""


@dataclass(frozen=True)
class CallForm:
    """How calls are written.

    - `marks`: texts that tell a chat template which writes it
    - `begin`, `end`: patterns of what a call has around its arguments. A group `name` is that of the tool; without one
      the arguments are in JSON beside it. A group `tool` has to be a tool's name, or nothing is a call
    - `argument`: pattern of an argument, its `key` and `value`; None for arguments in JSON
    - `pad`: what a value has on both sides, or on none
    - `mark`: what an answer holds only in calls
    """

    marks: tuple[str, ...]
    begin: str = ""
    end: str = ""
    argument: str | None = None
    pad: str = ""
    mark: str | None = None

    def read(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[SaidCall]]:
        """The text around the calls, and the calls. Raises ValueError if one cannot be read."""
        schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
        words, calls, place = "", list[SaidCall](), 0
        while (begin := re.compile(self.begin).search(text, place)) is not None:
            said = begin.groupdict()
            if said.get("tool") not in (None, *schemas):
                break
            words += text[place : begin.start()]
            found, place = self._arguments(text, begin.end(), schemas.get(said.get("name")))
            if (end := re.compile(self.end).match(text, place)) is None:
                raise ValueError("a call does not end")
            calls += [(said["name"], found)] if "name" in said else _named(found)
            place = end.end()
        words += text[place:]
        if self.mark is not None and self.mark in words:
            raise ValueError("a call does not begin")
        return words, calls

    def _arguments(self, text: str, place: int, schema: Any) -> tuple[Any, int]:
        """The arguments that begin at a place, or the whole call if it is in JSON, and where they end."""
        if self.argument is None:
            return JSON_DECODER.raw_decode(text, place)
        found: dict[str, Any] = {}
        while (said := re.compile(self.argument, re.DOTALL).match(text, place)) is not None:
            bare = said["value"].removeprefix(self.pad).removesuffix(self.pad)
            if said["key"] in found or len(said["value"]) - len(bare) not in (0, 2 * len(self.pad)):
                raise ValueError("an argument stands there twice, or its value does not end as it begins")
            found[said["key"]] = argument_value(bare, said["key"], schema)
            place = said.end()
        return found, place


def _named(value: Any) -> Iterator[SaidCall]:
    if not value:
        raise ValueError("no call")
    for call in value if isinstance(value, list) else [value]:
        if not isinstance(call, dict) or call.keys() - {"type", "id", "name", "arguments", "parameters"}:
            raise ValueError("a call has a name and arguments")
        (arguments,) = [call[key] for key in ("arguments", "parameters") if key in call] or [{}]
        yield call.get("name"), arguments


_OPENED, _LISTED = "<tool_call>", "[TOOL_CALLS]"
HARMONY = CallForm(
    ("<|channel|>", "<|call|>"),
)
"""gpt-oss: messages on channels, see harmony.py."""
GLM = CallForm(
    (_OPENED, "<arg_key>"),
    rf"{_OPENED}\s*(?P<name>[^<\s]+)\s*",
    "</tool_call>",
    r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>(?:[^<]|<(?!/?arg_(?:key|value)>))*+)</arg_value>\s*",
    mark=_OPENED,
)
"""GLM-4.5 and later: <tool_call>NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>, </tool_call>."""
QWEN_XML = CallForm(
    (_OPENED, "<function="),
    rf"{_OPENED}\s*<function=(?P<name>[^>\n]+)>\s*",
    r"</function>\s*</tool_call>",
    r"<parameter=(?P<key>[^>\n]+)>(?P<value>(?:[^<]|<(?!/?parameter[=>]))*+)</parameter>\s*",
    pad="\n",
    mark=_OPENED,
)  # fmt: skip
"""Qwen3.5 and Qwen3-Coder: <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>, with a
line end on both sides of a value."""
HERMES = CallForm(
    (_OPENED,),
    rf"{_OPENED}\s*",
    r"\s*</tool_call>",
    mark=_OPENED,
)
"""Qwen2.5, Qwen3, Hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""
MISTRAL_ARGS = CallForm(
    (_LISTED, "[ARGS]"),
    r"\[TOOL_CALLS\](?P<name>[^\[\]{}]+)(?:\[CALL_ID\][^\[\]]*)?\[ARGS\]\s*",
    r"\s*(?:(?=\[TOOL_CALLS\])|\Z)",
    mark=_LISTED,
)
"""Mistral since 2025: [TOOL_CALLS]NAME[ARGS]{...} for each call."""
MISTRAL = CallForm(
    (_LISTED,),
    r"\[TOOL_CALLS\]\s*(?=\[)",
    r"\s*\Z",
    mark=_LISTED,
)
"""Mistral's first form: [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]."""
LLAMA = CallForm(
    ("tool_calls", '"parameters": '),
    r'\A\s*(?:<\|python_tag\|>)?\s*(?=\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<tool>[^"]*)")',
    r"\s*\Z",
)
"""Llama-3.1 and later: an answer that is {"name": ..., "parameters": {...}}, or begins with "type": "function"."""
FORMS = (HARMONY, GLM, QWEN_XML, HERMES, MISTRAL_ARGS, MISTRAL, LLAMA)


def form_of(template_source: str) -> CallForm | None:
    """The form in which a chat template writes calls; None where none of these."""
    return next((form for form in FORMS if all(mark in template_source for mark in form.marks)), None)
