"""Rows with answers: conversations become token ids, and which of them are learnt."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal, Protocol

from roll.configs.data import DataArgs
from roll.datasets.loader import Row
from roll.datasets.sources import Choose, all_rows, data_sources
from roll.datasets.templates import PromptTemplate
from roll.datasets.tool_calls import Tool, json_in, tools_in, with_arguments
from roll.datasets.turns import Message, Turns
from roll.errors import ConfigError
from roll.types.batch import Rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

ROWS_LOOKED_AT = 1000
MOST_PROBLEMS = 5


@dataclass(frozen=True)
class Conversation:
    """Messages, of which the assistant's is the last, and the tools that were offered."""

    messages: list[Message]
    tools: Sequence[Tool] = ()


@dataclass(frozen=True)
class Columns:
    """Where a row has its texts, and what of a conversation is learnt: all turns of the assistant, or the last."""

    prompt: str
    query: str | None
    response: str
    system: str | None
    tools: str | None = None
    train_on: Literal["all", "last"] = "all"

    def read(self, row: Row, args: DataArgs, key: str) -> Conversation:
        """The row's conversation, which ends with the assistant. Raises ConfigError that names the row and the key."""
        if row.fault:
            raise ConfigError(f"{row.where}: {row.fault}")
        if args.messages is not None or (row.value("messages") is not None and self.prompt not in row.values):
            column = args.messages or "messages"
            messages = messages_in(row.value(column), row, column, f"{key}.messages")
            messages = ends_with_answer(messages, row, column)
        else:
            texts = [text_in(row, self.prompt, "prompt_key")]
            if self.query is not None and row.value(self.query):
                texts.append(text_in(row, self.query, "query_key"))
            answer = {"role": "assistant", "content": text_in(row, self.response, "response_key")}
            messages = [{"role": "user", "content": "\n".join(texts)}, answer]
        if self.system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": text_in(row, self.system, "system_key")})
        return Conversation(as_templates_take(messages, row), () if self.tools is None else tools_in(row, self.tools))


def load_conversations(
    args: DataArgs,
    key: str,
    columns: Columns,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    template: str | None = None,
    choose: Choose = all_rows,
) -> Rows:
    """All rows of `data_args` (at YAML path `key`) that `choose` gives, but for those of which nothing is learnt; a
    row's first token never is, for nothing predicts it. Raises ConfigError for a row that cannot be read or rendered,
    and for rows longer than `max_tokens` under `truncation: error`."""
    sources, problems = data_sources(args, key)
    if problems:
        raise ConfigError(*problems)
    at = "global_template" if template is not None else f"{key}.template"
    turns = Turns(PromptTemplate.load(template or args.template, tokenizer, at), columns.train_on)
    ids: list[list[int]] = []
    trained: list[list[bool]] = []
    num_rows = num_with_tools = num_long = longest = 0
    for row in choose(sources):
        conversation = columns.read(row, args, key)
        tokens, mask = turns.encode(conversation.messages, row, tools=conversation.tools)
        num_rows, num_with_tools = num_rows + 1, num_with_tools + bool(conversation.tools)
        if len(tokens) > max_tokens:
            num_long, longest = num_long + 1, max(longest, len(tokens))
            cut = slice(-max_tokens, None) if args.truncation == "left" else slice(max_tokens)
            tokens, mask = tokens[cut], mask[cut]
            if args.truncation in ("error", "drop"):
                continue
        mask = predicted(mask)
        if not any(mask):
            continue
        ids.append(tokens)
        trained.append(mask)
    if args.truncation == "error" and num_long:
        raise ConfigError(
            f"{key}: {num_long} of {num_rows} rows are longer than sequence_length = {max_tokens} tokens; the longest "
            f"has {longest}. Raise sequence_length, or set {key}.truncation: left, right or drop"
        )
    if not ids:
        raise ConfigError(f"{key}.file_name: no rows to learn from in {', '.join(args.file_name)} ({num_rows} rows)")
    counts = f"{num_with_tools} of them with tools, {num_long} too long"
    logger.info("%s: %d rows, %s, %d used", key, num_rows, counts, len(ids))
    return Rows.of(ids, trained)


def predicted(mask: Sequence[bool]) -> list[bool]:
    """The tokens of a row that are learnt, without its first one."""
    return [learnt and place > 0 for place, learnt in enumerate(mask)]


class Reads(Protocol):
    """How a row is read. Raises ConfigError that names the row and the key."""

    def read(self, row: Row, args: DataArgs, key: str) -> object: ...


def look_at_rows(args: DataArgs, key: str, columns: Reads) -> Iterator[str]:
    """What is wrong with what `data_args` name, and with the first rows of each file."""
    sources, problems = data_sources(args, key)
    yield from problems
    for source in sources:
        wrong: list[str] = []
        try:
            for row in islice(source.rows(), ROWS_LOOKED_AT):
                try:
                    columns.read(row, args, key)
                except ConfigError as error:
                    wrong += error.problems
        except ConfigError as error:
            wrong += error.problems
        yield from wrong[:MOST_PROBLEMS]
        if len(wrong) > MOST_PROBLEMS:
            yield f"{key}.file_name: {source.name} has {len(wrong) - MOST_PROBLEMS} more problems of this sort"


def text_in(row: Row, column: str, key: str) -> str:
    """What stands in the column that `key` names. Raises ConfigError where it is no text."""
    value = row.value(column)
    if not isinstance(value, str):
        raise ConfigError(not_there(row, column, key, value, "a text"))
    return value


def not_there(row: Row, column: str, key: str, value: object, wanted: str) -> str:
    state = "is missing" if value is None else f"holds {type(value).__name__}, not {wanted}"
    names = ", ".join(map(str, row.values)) or "none"
    return f"{row.where}: column {column!r} {state}; the row has {names}. Set {key} to the column's name"


def ends_with_answer(messages: list[Message], row: Row, column: str) -> list[Message]:
    """The messages. Raises ConfigError where the last one is not the assistant's."""
    if messages[-1]["role"] != "assistant":
        raise ConfigError(
            f"{row.where}: column {column!r} ends with a message of {messages[-1]['role']!r}; the last turn must be "
            "the assistant's, which is learnt"
        )
    return messages


def messages_in(value: object, row: Row, column: str, key: str) -> list[Message]:
    """The messages that a column holds, as a list or as JSON. Raises ConfigError where it holds something else."""
    if isinstance(value, str):
        value = json_in(value, row, column)
    if not isinstance(value, list) or not value or not all(_is_message(message) for message in value):
        raise ConfigError(
            f"{row.where}: column {column!r} ({key}) must be a list of messages, each with role and content"
        )
    return [dict(message) for message in value]


def as_templates_take(messages: Sequence[Message], row: Row) -> list[Message]:
    """The messages, with arguments of calls that are JSON texts as mappings. Raises ConfigError for others."""
    try:
        return [with_arguments(message) for message in messages]
    except ValueError as error:
        raise ConfigError(f"{row.where}: {error}") from error


def _is_message(message: object) -> bool:
    return (
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and (isinstance(message.get("content"), str) or bool(message.get("tool_calls")))
    )
