"""Messages as chat templates take them, whatever form a data set has them in: every run cleans them here."""

import json
import re
from collections.abc import Mapping
from typing import Any

from roll.configs.problems import did_you_mean
from roll.datasets.loader import Row
from roll.datasets.media import A_PICTURE, KEYS, SIZE_KEYS, TEXT_KINDS, UNREAD, medium_keys, part_medium
from roll.datasets.tool_calls import clean_calls, json_in, plain
from roll.errors import ConfigError
from roll.utils.text import show

Message = dict[str, Any]
CONVERSATIONS = ("messages", "conversations", "conversation")
"""Columns that are read as conversations where no key names one."""

_ROLES = ("system", "developer", "user", "assistant", "tool", "ipython", "observation", "tool_response", "context",
          "document", "documents", "latest_reminder", "critic", "environment")  # fmt: skip
"""Roles that templates know: the usual ones first, then names of a few families."""
_OTHER_NAMES = {
    "human": "user", "prompter": "user", "gpt": "assistant", "chatgpt": "assistant", "bard": "assistant",
    "bing": "assistant", "model": "assistant", "bot": "assistant", "ai": "assistant", "function": "tool",
}  # fmt: skip
_SHAREGPT_NAMES = {**_OTHER_NAMES, "observation": "tool", "tool_response": "tool", "function_response": "tool"}
_CALLING = ("function_call", "tool_call")  # roles of ShareGPT's whose text is the JSON of a call
_REASONING = ("reasoning_content", "reasoning", "thinking")
_LEARNT = ("train", "loss")  # Axolotl's and ms-swift's names for OpenAI's weight of a message
_TOOLS = ("tool", "ipython", "observation", "tool_response")  # roles whose content may be any JSON
_OF_PICTURES = (*KEYS, *SIZE_KEYS, "detail")
PICTURE = "image"
"""The type of a part that shows a picture."""
SHOWING = ("user", *_TOOLS)
"""Roles whose turns may show pictures."""
_SAYING = ("content", "value", "tool_calls", "function_call")
_SHAPE = "must be a list of messages, each with role and content, such as [{'role': 'user', 'content': '...'}]"
_TURN = re.compile(r"\n\n(Human|Assistant):")


def messages_in(value: object, row: Row, column: str, key: str, shows: bool = False) -> list[Message]:
    """The messages that a column holds, as a list or as JSON, cleaned. Raises ConfigError that names the row where it
    holds something else. `key` names the column; with `shows`, turns may show pictures."""
    if isinstance(value, str):
        value = json_in(value, row, column)
    is_one = isinstance(value, Mapping) and isinstance(value.get("role", value.get("from")), str)
    try:
        return clean_messages([value] if is_one else value, shows=shows)
    except _Shapeless as error:
        raise ConfigError(f"{row.where}: column {column!r} ({key}) {error}") from error
    except ValueError as error:
        raise ConfigError(f"{row.where}: column {column!r}: {error}") from error


def conversation_column(row: Row, but: str) -> str | None:
    """The column that holds the row's conversation where no key names it and no column is called `but`, if any does."""
    if row.values.get(but) is not None:
        return None
    if row.values.get(CONVERSATIONS[0]) is not None:
        return CONVERSATIONS[0]
    return next((name for name in CONVERSATIONS if _may_be_messages(row.values.get(name))), None)


def are_messages(value: object) -> bool:
    """True of what looks like messages, clean or not: a list of mappings with roles and contents."""
    messages = plain(value)
    return isinstance(messages, list) and bool(messages) and all(map(_is_message, messages))


def messages_of_text(value: object) -> object:
    """Return the messages in a text, and any other value as it is. The text is JSON, as in a column of a CSV file, or a
    dialogue as in hh-rlhf that ends with the assistant's turn still empty."""
    turns = transcript(value) if isinstance(value, str) else None
    if turns and len(turns) > 1 and turns[-1] == {"role": "assistant", "content": ""}:
        return turns[:-1]
    if not isinstance(value, str) or not value.lstrip().startswith("[") or not value.rstrip().endswith("]"):
        return value
    try:
        parsed = json.loads(value)
    except ValueError:
        return value
    return parsed if are_messages(parsed) else value


def are_parts(value: object) -> bool:
    """True of the parts of one message's content, outside of a message: texts or pictures with their types."""
    return isinstance(value, list) and bool(value) and all(map(_is_lone_part, value))


def _is_lone_part(part: Any) -> bool:
    is_mapping = isinstance(part, Mapping) and not {"role", "from"} & set(part)
    return is_mapping and (part.get("type") in TEXT_KINDS or _is_picture(part))


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and bool({"role", "from"} & set(value)) and bool({*_SAYING} & set(value))


def _may_be_messages(value: object) -> bool:
    if isinstance(value, str):
        return value.lstrip().startswith("[")
    return isinstance(value, Mapping) or are_messages(value)


def clean_messages(value: object, parses: bool = True, shows: bool = False) -> list[Message]:
    """Messages of OpenAI's form or ShareGPT's (`from`, `value`), as Python's own values:

    - keys that hold null are dropped at every depth, and so are calls of tools that are null or empty;
    - content is a text: its parts put together as templates do that take parts, "" beside calls where there is none;
    - calls are `tool_calls` (`function_call` of old is one), with a mapping of arguments. Without `parses`, arguments
      that are texts stay texts;
    - roles are those that templates know.

    With `shows`, the content of a turn that shows pictures is a list: {"type": "text", "text"} and {"type": "image",
    "image"}, which holds the part as it was.

    Raises ValueError that names the message: no text, parts that show pictures, a role or a call that is none.
    """
    entries = plain(value)
    if isinstance(entries, Mapping) and entries and all(isinstance(each, list) for each in entries.values()):
        columns = [dict(zip(entries, each, strict=False)) for each in zip(*entries.values(), strict=False)]
        entries = plain(columns)  # sequences of mappings are so in data sets
    if not isinstance(entries, list) or not entries:
        raise _Shapeless(_SHAPE)
    return [_clean(message, place, parses, shows) for place, message in enumerate(entries, start=1)]


class _Shapeless(ValueError):
    """Error: the value is not a list of messages at all."""


def _clean(value: Any, place: int, parses: bool, shows: bool) -> Message:
    if not isinstance(value, Mapping):
        raise _Shapeless(_SHAPE)
    message, names = dict(value), _OTHER_NAMES
    if "role" not in message and "from" in message:
        message, names = {"role": message.pop("from"), **message}, _SHAREGPT_NAMES
    if "content" not in message and "value" in message:
        message["content"] = message.pop("value")
    if not isinstance(message.get("role"), str):
        raise _Shapeless(_SHAPE)
    at = f"message {place} ({message['role']})"
    for key in _LEARNT:
        if isinstance(message.get(key), bool | int | float):
            message.setdefault("weight", int(bool(message.pop(key))))
    if (weight := message.get("weight")) not in (None, 0, 1):
        raise ValueError(f"{at} has a weight of {show(weight)}; it is 1, or 0 for a message that is not learnt")
    try:
        return _with_text(_with_calls(message, names, parses), at, shows)
    except ValueError as error:
        raise ValueError(str(error) if at in str(error) else f"{at}: {error}") from error


def _with_calls(message: Message, names: Mapping[str, str], parses: bool) -> Message:
    role = message["role"].strip()
    role = role if role in _ROLES else role.lower()
    calls: Any = message.pop("tool_calls", None)
    legacy = message.pop("function_call", None)
    if names is _SHAREGPT_NAMES and role in _CALLING:
        calls, role = message.pop("content", None), "assistant"
    role = names.get(role, role)
    if role not in _ROLES:
        known = ", ".join(_ROLES[:5])
        raise ValueError(f"no chat template supports this role.{did_you_mean(role, _ROLES)} The usual ones are {known}")
    if not calls and isinstance(legacy, Mapping) and legacy.get("name"):
        calls = [legacy]
    cleaned = clean_calls(calls, parses)
    return {**message, "role": role, **({"tool_calls": cleaned} if cleaned else {})}


def _with_text(message: Message, at: str, shows: bool) -> Message:
    content = message.get("content", "" if "tool_calls" in message else None)
    role = message["role"]
    if beside := [key for key in medium_keys(message) if not key.startswith("file")]:
        raise ValueError(
            f"{at} has {beside[0]!r} beside its content, which no template shows; write it as a part of the content, "
            "or leave such rows out"
        )
    if content is None or not (isinstance(content, str | list) or role in _TOOLS):
        raise ValueError(f"the content of {at} is {show(content)}, not a text; correct the row, or leave it out")
    if shows and isinstance(content, list) and _has_pictures(content, role):
        text, thought = _parts_of(content, role)
    else:
        text, thought = _text_of(content, role)
    rest = {key: inner for key, inner in message.items() if key not in ("role", "content")}
    for key in _REASONING:
        if isinstance(rest.get(key), list):
            rest[key] = _text_of(rest[key], role)[0]
    if thought and not any(rest.get(key) for key in _REASONING):
        rest["reasoning_content"] = thought
    return {"role": role, "content": text, **rest}


def _text_of(content: Any, role: str) -> tuple[str, str]:
    """A content as a text, and the reasoning among its parts. What a tool returns may be any JSON."""
    if isinstance(content, str):
        return content, ""
    if role in _TOOLS and not _are_parts(content):
        return json.dumps(content, ensure_ascii=False, default=str), ""
    texts = {"text": "", "thinking": ""}
    for number, part in enumerate(content, start=1):
        kind, text = ("text", part) if isinstance(part, str) else _part(part, number)
        texts[kind] += text
    return texts["text"], texts["thinking"]


def _parts_of(content: list[Any], role: str) -> tuple[list[Message], str]:
    """The parts of a content that shows pictures, texts beside each other as one, and the reasoning among them."""
    if role not in SHOWING:
        raise ValueError(f"a turn of the role {role} shows a picture; only turns of users and tools may")
    parts: list[Message] = []
    thoughts = ""
    for number, part in enumerate(content, start=1):
        if _is_picture(part):
            if unread := _beside_picture(part):
                raise ValueError(
                    f"part {number} of its content shows a picture and holds {unread!r} too, which would not be read; "
                    "write a part for each"
                )
            parts.append({"type": PICTURE, "image": part})
            continue
        kind, text = ("text", part) if isinstance(part, str) else _part(part, number)
        if kind == "thinking":
            thoughts += text
        elif parts and parts[-1]["type"] == "text":
            parts[-1] = {"type": "text", "text": parts[-1]["text"] + text}
        elif text:
            parts.append({"type": "text", "text": text})
    return parts, thoughts


def _is_picture(part: Any) -> bool:
    return isinstance(part, Mapping) and part_medium(part) == A_PICTURE


def _has_pictures(content: list[Any], role: str) -> bool:
    """True of parts of which some show pictures. What a tool returns may be any other list."""
    return any(map(_is_picture, content)) and (role not in _TOOLS or _are_parts(content))


def _beside_picture(part: Mapping[str, Any]) -> str | None:
    """The key of what a part holds beside its picture: a text, or where it says no type anything."""
    return next((key for key in part if key == "text" or ("type" not in part and key not in _OF_PICTURES)), None)


def _are_parts(content: Any) -> bool:
    """True of mappings with a type or a text, or with a picture and nothing that is no part of it."""
    return isinstance(content, list) and all(
        isinstance(part, Mapping)
        and ("type" in part or "text" in part or (_is_picture(part) and _beside_picture(part) is None))
        for part in content
    )


def _part(part: Any, number: int) -> tuple[str, str]:
    """Its kind, text or thinking, and its text."""
    if not isinstance(part, Mapping):
        raise ValueError(f"part {number} of its content is {show(part)}, neither a text nor a mapping with one")
    if (medium := part_medium(part)) is not None:
        raise ValueError(f"part {number} of its content shows {medium}, {UNREAD}")
    kind = part.get("type", "text")
    if kind in ("thinking", "reasoning"):
        inner = part.get("thinking", part.get("text", part.get("reasoning")))
        return "thinking", inner if isinstance(inner, str) else _text_of(inner or "", "assistant")[0]
    text = part.get("text", part.get("content"))
    if kind not in TEXT_KINDS or not isinstance(text, str):
        hint = ". Write calls as tool_calls, and results as messages of the role tool" if "tool_" in str(kind) else ""
        raise ValueError(f"part {number} of its content ({show(kind)}) holds no text{hint}")
    return "text", text


def transcript(text: str) -> list[Message] | None:
    r"""The messages of a dialogue as hh-rlhf writes it: "\n\nHuman: 31?\n\nAssistant: 13"; None of other texts."""
    if not text.startswith("\n\nHuman:"):
        return None
    _, *pieces = _TURN.split(text)
    roles = {"Human": "user", "Assistant": "assistant"}
    return [{"role": roles[who], "content": said.strip()} for who, said in zip(pieces[::2], pieces[1::2], strict=True)]
