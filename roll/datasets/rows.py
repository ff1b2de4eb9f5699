"""Meaning of a row: its messages, its domain, its reference answer. One place says what is wrong with a row."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roll.configs.sections.data import DataArgs
from roll.configs.tables.sight import VisionModel
from roll.datasets.loader import Row
from roll.datasets.media import BLIND, check_text_alone
from roll.datasets.messages import are_messages, are_parts, conversation_column, messages_in, messages_of_text
from roll.datasets.shown import readable
from roll.datasets.sight import RowPictures, sight
from roll.datasets.tool_calls import Tool, calls_in, plain, tools_in
from roll.errors import ConfigError
from roll.types.media import PictureSource
from roll.utils.truths import GROUND_TRUTH, Columns, as_data

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Domain:
    """A domain of `rewards` as the data sees it: rows with one of `tags` belong to it. Each must have the `required`
    columns; with `some_ground_truth`, at least one must have a ground_truth. `checks` say what is wrong with a row's
    columns, None if nothing is."""

    name: str
    tags: tuple[str, ...]
    required: tuple[Columns, ...] = (GROUND_TRUTH,)
    some_ground_truth: bool = False
    checks: tuple[Callable[[Mapping[str, Any]], str | None], ...] = ()


@dataclass(frozen=True)
class Example:
    """A row understood: a conversation that ends before the answer, and the tools that it offers. A bare prompt is a
    conversation of one message.

    - `row`: without its pictures
    - `pictures`: in the order of their parts in `messages`
    """

    row: Row
    domain: str
    messages: tuple[Message, ...]
    is_text: bool  # the row held a bare prompt, which is `text`
    tools: tuple[Tool, ...] = ()
    pictures: tuple[PictureSource, ...] = ()

    @property
    def text(self) -> str:
        return str(self.messages[-1]["content"])

    @property
    def question(self) -> str:
        """The conversation as a reader needs it to judge the answer."""
        return shown(self.messages)


def shown(messages: Sequence[Message]) -> str:
    """A conversation for a reader: one message by itself, several with their roles. Calls of tools are on lines of
    their own; what else is no text is left out."""
    texts = [(message["role"], _shown_alone(message)) for message in readable(messages)]
    if len(texts) == 1:
        return texts[0][1]
    return "\n\n".join(f"{role}: {text}" for role, text in texts if text)


class RowReader:
    """Turns rows into examples. `key` is the YAML path of `args`, for messages. `vision`: the model, if it sees
    pictures; without it rows with pictures are refused.

    Tags may be listed by one domain only: two raise ConfigError. A row without a tag belongs to the only domain, if
    there is one.
    """

    def __init__(self, args: DataArgs, key: str, domains: Sequence[Domain], vision: VisionModel | None = None):
        self._args = args
        self._pictures = None if vision is None else sight().row_pictures(args, key)
        self._key = key
        self._domains = {domain.name: domain for domain in domains}
        self._domain_of_tag: dict[str, str] = {}
        for domain in domains:
            for tag in domain.tags:
                other = self._domain_of_tag.setdefault(tag, domain.name)
                if other != domain.name:
                    raise ConfigError(
                        f"tag {tag!r} belongs to two domains: rewards.{other} and rewards.{domain.name}; "
                        "take it out of one tag_included"
                    )

    def read(self, row: Row) -> Example:
        """Raises ConfigError that names the row, the YAML key and what to do."""
        domain = self._domain(row)
        for columns in self._domains[domain].required:
            if isinstance(columns, str):
                self._require(row, domain, columns)
            else:
                self._require_one(row, domain, columns)
        for check in self._domains[domain].checks:
            problem = check(self.payload(row))
            if problem is not None:
                about = f", ground_truth is column {self._args.ground_truth!r}" if "ground truth" in problem else ""
                raise ConfigError(f"{row.where}: {problem} (rewards.{domain}{about})")
        if self._pictures is None:
            check_text_alone(row, BLIND)
        elif (what := self._pictures.problem(row)) is not None:
            raise ConfigError(what)
        messages, is_text = self._messages(row)
        tools = tools_in(row, self._args.tools, f"{self._key}.tools") if self._args.tools is not None else ()
        if self._pictures is None:
            return Example(row, domain, messages, is_text, tools)
        return self._shown(Example(row, domain, messages, is_text, tools), self._pictures)

    def _shown(self, example: Example, found: RowPictures) -> Example:
        """The example with the pictures of its row, which leave the row itself."""
        messages, pictures = found.placed(example.row, example.messages)
        row = found.without(example.row)
        if not pictures:
            return replace(example, row=row)
        column = self.columns(row)[0]
        if any(isinstance(message["content"], list) for message in example.messages):  # which may hold whole pictures
            row = replace(row, values={**row.values, str(column): [dict(message) for message in readable(messages)]})
        return replace(example, row=row, messages=messages, is_text=False, pictures=pictures)

    def columns(self, row: Row) -> list[str | None]:
        """The columns of the row that a run reads, whatever its rewards do."""
        args = self._args
        needed = [name for domain in self._domains.values() for each in domain.required for name in _listed(each)]
        return [self._text_column(row)[0], args.tools, args.ground_truth, args.tag, args.id, *needed]

    def payload(self, row: Row) -> dict[str, Any]:
        """All columns of the row but those of pictures; the reference answer is there as `ground_truth` whatever its
        column is called."""
        row = row if self._pictures is None else self._pictures.without(row)
        value = row.value(self._args.ground_truth)
        if value is None and self._args.ground_truth not in row.values:
            return dict(row.values)
        return {**row.values, "ground_truth": value}

    def _domain(self, row: Row) -> str:
        tag = tag_of(row, self._args.tag)
        if tag is None:
            if len(self._domains) == 1:
                return next(iter(self._domains))
            raise self._missing(row, self._args.tag, "tag", "which of the domains under rewards the row belongs to")
        domain = self._domain_of_tag.get(tag)
        if domain is None:
            known = sorted(self._domain_of_tag)
            only = next(iter(self._domains)) if len(self._domains) == 1 else None
            add = f"Add it to rewards.{only or '<domain>'}.tag_included"
            if only:
                add += f", or set {self._key}.tag: '' if every row is of {only}, whatever its tag"
            raise ConfigError(
                f"{row.where}: no domain has the tag {tag!r} (column {self._args.tag!r}). {add}; known "
                f"tags: {', '.join(known)}"
            )
        return domain

    def ground_truth(self, row: Row) -> Any:
        """The row's reference answer, None if it has none."""
        value = row.value(self._args.ground_truth)
        return None if value == "" else value

    def _require(self, row: Row, domain: str, column: str) -> None:
        if column == GROUND_TRUTH:
            value = self.ground_truth(row)
            if value is None:
                meaning = f"the answer that rewards.{domain} compares with"
                raise self._missing(row, self._args.ground_truth, GROUND_TRUTH, meaning)
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(
                    f"{row.where}: column {self._args.ground_truth!r} holds {value}, which no response can equal "
                    f"(rewards.{domain}). Correct the row, or leave it out"
                )
        elif row.values.get(column) is None:
            state = "is empty" if column in row.values else f"is missing; the row has {_names(row)}"
            raise ConfigError(f"{row.where}: column {column!r} {state}. rewards.{domain} needs a value")

    def _require_one(self, row: Row, domain: str, columns: Sequence[str]) -> None:
        names = [self._args.ground_truth if column == GROUND_TRUTH else column for column in columns]
        if all(row.value(name) in (None, "") for name in names):
            raise ConfigError(
                f"{row.where}: none of the columns {', '.join(names)} has a value, and rewards.{domain} needs one; the "
                f"row has {_names(row)}"
            )

    def _missing(self, row: Row, column: str, name: str, meaning: str) -> ConfigError:
        state = "is empty" if column in row.values else f"is missing; the row has {_names(row)}"
        key = f"{self._key}.{name}"
        return ConfigError(f"{row.where}: column {column!r} ({meaning}) {state}. Set {key} to the column's name")

    def _messages(self, row: Row) -> tuple[tuple[Message, ...], bool]:
        """The conversation with its system prompt, and whether it is a bare prompt."""
        messages, is_text = self._own_messages(row)
        if self._args.system_prompt and messages[0]["role"] not in ("system", "developer"):
            return ({"role": "system", "content": self._args.system_prompt}, *messages), False
        return messages, is_text

    def _text_column(self, row: Row) -> tuple[str, bool]:
        """The column of the prompt, and whether it is read as a conversation: one that a key names, else `messages` or
        another of that kind, else `prompt`."""
        args = self._args
        if args.messages is not None or (args.prompt is None and row.values.get("messages") is not None):
            return args.messages or "messages", True
        talk = conversation_column(row, "prompt") if args.prompt is None else None
        return talk or args.prompt or "prompt", talk is not None

    def _own_messages(self, row: Row) -> tuple[tuple[Message, ...], bool]:
        """A named column must be there. A text in `messages` is JSON."""
        column, is_conversation = self._text_column(row)
        if is_conversation:
            return self._conversation(row, column), False
        prompt = row.value(column)
        if prompt is None or prompt == "":
            raise self._missing(row, column, "prompt", "the prompt")
        if not isinstance(prompt, str) or messages_of_text(prompt) is not prompt:
            if isinstance(prompt, str) or are_messages(prompt) or are_parts(plain(prompt)):
                return self._conversation(row, column), False
            if isinstance(prompt, list):
                raise ConfigError(
                    f"{row.where}: column {column!r} holds a list; name it as {self._key}.messages: {column}"
                )
            raise ConfigError(f"{row.where}: column {column!r} holds {type(prompt).__name__}, a prompt is a text")
        return ({"role": "user", "content": prompt},), True

    def _conversation(self, row: Row, column: str) -> tuple[Message, ...]:
        value = messages_of_text(row.value(column))
        if value is None or value == "":
            raise self._missing(row, column, "messages", "the conversation")
        key = f"{self._key}.messages"
        if isinstance(value, str) and not value.lstrip().startswith(("[", "{")):
            raise ConfigError(
                f"{row.where}: column {column!r} is a text but not JSON (no list); for a bare prompt set "
                f"{self._key}.prompt: {column}"
            )
        if are_parts(plain(value)):
            value = [{"role": "user", "content": value}]
        messages = messages_in(value, row, column, key, shows=self._pictures is not None)
        if messages[-1]["role"] == "assistant":
            raise ConfigError(
                f"{row.where}: column {column!r} ends with an assistant message; leave it out, since the policy writes "
                f"it, or name the column of the question as {self._key}.prompt"
            )
        return tuple(messages)


def tag_of(row: Row, column: str) -> str | None:
    """Return the tag of a row; a list of one, also as text, counts as its item."""
    value = as_data(row.value(column))
    if isinstance(value, list | tuple) and len(value) < 2:
        value = next(iter(value), None)
    return None if value is None else str(value)


def _shown_alone(message: Message) -> str:
    return "\n".join(text for text in (_text_of(message.get("content")), *calls_in(message)) if text)


def _text_of(content: Any) -> str:
    """Example: [{"type": "text", "text": "what is it?"}, {"type": "image"}] -> "what is it?"."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part)


def _listed(columns: Columns) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else columns


def _names(row: Row) -> str:
    return ", ".join(map(str, row.values)) or "none"
