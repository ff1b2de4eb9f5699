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
_LEARNT = ("train", "training", "loss")  # Axolotl's and ms-swift's names for OpenAI's weight of a message
_TOOLS = ("tool", "ipython", "observation", "tool_response")  # roles whose content may be any JSON
_OPENS, _CLOSES = "<tool_response>", "</tool_response>"
_BETWEEN_RESULTS = re.compile(rf"{_CLOSES}\s*{_OPENS}")
_OF_PICTURES = (*KEYS, *SIZE_KEYS, "text", "detail")
PICTURE = "image"
"""The type of a part that shows a picture."""
SHOWING = ("user", *_TOOLS)
"""Roles whose turns may show pictures."""
_PAIRS_OF_KEYS = (
    ("role", "content"), ("role", "tool_calls"), ("role", "function_call"), ("role", "value"), ("from", "value"),
    ("from", "tool_calls"), ("from", "function_call"),
)  # fmt: skip
_EXCHANGES = (
    ("input", "output"), ("user", "assistant"), ("human", "assistant"), ("human", "gpt"), ("question", "answer"),
    ("prompt", "response"), ("query", "response"), ("instruction", "output"),
)  # fmt: skip
"""Keys of a turn and its answer in one mapping, as Capybara has them."""
_SHAPE = "must be a list of messages, each with role and content, such as [{'role': 'user', 'content': '...'}]"
_TURN = re.compile(r"\n\n(Human|Assistant):")


def messages_in(value: object, row: Row, column: str, key: str, shows: bool = False) -> list[Message]:
    """The messages that a column holds, as a list or as JSON, cleaned. Raises ConfigError that names the row where it
    holds something else. `key` names the column; with `shows`, turns may show pictures."""
    if isinstance(value, str):
        value = json_in(value, row, column)
    try:
        return clean_messages(value, shows=shows)
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
    plain_value = plain(value)
    return (
        isinstance(plain_value, list)
        and bool(plain_value)
        and (
            all(map(_is_message, plain_value))
            or _exchange(value if isinstance(value, list) else plain_value) is not None
        )
    )


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


def with_nulls(value: object, cleaned: object) -> list[Any]:
    """Return the messages of a column as they are in the file, with its nulls, by which an empty content is known. A
    single message is a list of one. `cleaned`: the same without nulls; used if `value` is a text."""
    held = value if isinstance(value, Mapping | list) else cleaned
    return held if isinstance(held, list) else [held]


def are_parts(value: object) -> bool:
    """True of the parts of one message's content, outside of a message: texts or pictures with their types."""
    return isinstance(value, list) and bool(value) and all(map(_is_lone_part, value))


def _is_lone_part(part: Any) -> bool:
    is_mapping = isinstance(part, Mapping) and not {"role", "from"} & set(part)
    return is_mapping and (part.get("type") in TEXT_KINDS or _is_picture(part))


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and any({role, text} <= set(value) for role, text in _PAIRS_OF_KEYS)


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
    if isinstance(entries, Mapping) and _is_columns(entries):
        entries = [dict(zip(entries, each, strict=True)) for each in zip(*entries.values(), strict=True)]
        value = entries
    if isinstance(entries, list) and (keys := _exchange(value if isinstance(value, list) else entries)) is not None:
        entries = value = _both_sides(entries, *keys)
    if not isinstance(entries, list) or not entries:
        raise _Shapeless(_SHAPE)
    originals = value if isinstance(value, list) else entries
    cleaned = [_clean(message, originals[place], place + 1, parses, shows) for place, message in enumerate(entries)]
    return _in_order_of_calls(cleaned)


def _in_order_of_calls(messages: list[Message]) -> list[Message]:
    """Results behind several calls in the order of these, where both say which belong together: most templates write no
    ids, and the model takes the first result for that of the first call."""
    ordered = list(messages)
    for place, message in enumerate(messages):
        ids = [call.get("id") for call in message.get("tool_calls") or ()]
        results = messages[place + 1 : place + 1 + len(ids)]
        if len(ids) < 2 or [m["role"] for m in results] != ["tool"] * len(ids):
            continue
        named = [*ids, *(result.get("tool_call_id") for result in results)]
        if not all(isinstance(each, str | int) for each in named):
            continue
        by_id = {result["tool_call_id"]: result for result in results}
        if len(by_id) == len(ids) and by_id.keys() == set(ids):
            ordered[place + 1 : place + 1 + len(ids)] = [by_id[each] for each in ids]
    return ordered


def _exchange(turns: list[Any]) -> tuple[str, str] | None:
    """The keys of both sides, where every item is a turn and its answer; one of both may be null."""
    if not turns or not all(
        isinstance(turn, Mapping) and not {"role", "from", "content"} & set(turn) for turn in turns
    ):
        return None
    pairs = [keys for keys in _EXCHANGES if all(set(keys) & set(turn) for turn in turns)]
    return next((keys for keys in pairs if any(set(keys) <= set(turn) for turn in turns)), None)


def _both_sides(turns: list[Any], user_key: str, answered: str) -> list[Message]:
    messages: list[Message] = []
    for number, turn in enumerate(turns):
        if not number and isinstance(turn.get("system"), str) and turn["system"]:
            messages.append({"role": "system", "content": turn["system"]})
        sides = (("user", turn.get(user_key)), ("assistant", turn.get(answered)))
        messages += [{"role": role, "content": said} for role, said in sides if said is not None]
    return messages


class _Shapeless(ValueError):
    """Error: the value is not a list of messages at all."""


def _is_columns(value: Mapping[str, Any]) -> bool:
    """True of the form that sequences of mappings have in data sets: a list for every key."""
    is_lists = all(isinstance(each, list) for each in value.values())
    names = {"role", "from"} & set(value) or any(set(keys) <= set(value) for keys in _EXCHANGES)
    return is_lists and bool(names) and len({len(each) for each in value.values()}) == 1


def _clean(value: Any, original: Any, place: int, parses: bool, shows: bool) -> Message:
    """`original`: the message as it stood there, with its nulls."""
    if not isinstance(value, Mapping):
        raise _Shapeless(_SHAPE)
    message = {key: inner for key, inner in value.items() if inner is not None}
    names = _OTHER_NAMES
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
        message = _with_calls(message, names, parses)
        if "content" not in message and "tool_calls" not in message and not {"content", "value"} & set(original):
            raise _Shapeless(_SHAPE)
        return _with_text(message, at, shows)
    except _Shapeless:
        raise
    except ValueError as error:
        raise ValueError(str(error) if at in str(error) else f"{at}: {error}") from error


def _with_calls(message: Message, names: Mapping[str, str], parses: bool) -> Message:
    role = message["role"].strip()
    role = role if role in _ROLES else role.lower()
    calls: Any = message.pop("tool_calls", None)
    legacy = message.pop("function_call", None)
    if names is _SHAREGPT_NAMES and role in _CALLING:
        calls, role = _calls_of_text(message.pop("content", None)), "assistant"
    role = names.get(role, role)
    if role not in _ROLES:
        known = ", ".join(_ROLES[:5])
        raise ValueError(f"no chat template supports this role.{did_you_mean(role, _ROLES)} The usual ones are {known}")
    if not calls and isinstance(legacy, Mapping) and legacy.get("name"):
        calls = [legacy]
    cleaned = clean_calls(calls, parses)
    return {**message, "role": role, **({"tool_calls": cleaned} if cleaned else {})}


def _calls_of_text(content: Any) -> Any:
    """Calls in the text of a ShareGPT message: {"name", "arguments"}, or a list of them."""
    if not isinstance(content, str):
        return content
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise ValueError(f"its text should be the JSON of a call, but is not ({error.msg})") from error


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
        return (_without_marks(content) if role in _TOOLS else content), ""
    if role in _TOOLS and not _are_parts(content):
        return json.dumps(content, ensure_ascii=False, default=str), ""
    texts, thoughts = [], []
    for number, part in enumerate(content, start=1):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind, text = _part(part, number)
        (thoughts if kind == "thinking" else texts).append(text)
    return "".join(texts), "".join(thoughts)


def _without_marks(result: str) -> str:
    """Text that a tool returned, without the marks of Hermes' prompts: templates write marks of their own."""
    if not (result.lstrip().startswith(_OPENS) and result.rstrip().endswith(_CLOSES)):
        return result
    pieces = result.strip().removeprefix(_OPENS).removesuffix(_CLOSES)
    return "\n".join(piece.strip() for piece in _BETWEEN_RESULTS.split(pieces))


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
    if not any(map(_is_picture, content)):
        return False
    return role not in _TOOLS or _are_parts(content)


def _beside_picture(part: Mapping[str, Any]) -> str | None:
    """The key of what a part holds beside its picture: a text, or where it says no type anything."""
    if part.get("text"):
        return "text"
    return next((str(key) for key in part if "type" not in part and key not in _OF_PICTURES), None)


def _are_parts(content: Any) -> bool:
    return isinstance(content, list) and all(map(_is_part, content))


def _is_part(part: Any) -> bool:
    """True of a mapping with a type or a text, and of one with a picture and nothing that is no part of it."""
    if not isinstance(part, Mapping):
        return False
    has_kind = isinstance(part.get("type"), str) or isinstance(part.get("text"), str)
    return has_kind or (_is_picture(part) and _beside_picture(part) is None)


def _part(part: Any, number: int) -> tuple[str, str]:
    """Its kind, and its text."""
    if not isinstance(part, Mapping):
        raise ValueError(f"part {number} of its content is {show(part)}, neither a text nor a mapping with one")
    if (medium := part_medium(part)) is not None:
        raise ValueError(f"part {number} of its content shows {medium}, {UNREAD}")
    kind = part.get("type", "text")
    if kind in ("thinking", "reasoning"):
        inner = part.get("thinking", part.get("text", part.get("reasoning")))
        return "thinking", inner if isinstance(inner, str) else _text_of(inner or "", "assistant")[0]
    text = next((part[key] for key in ("text", "content", "value") if isinstance(part.get(key), str)), None)
    if kind not in TEXT_KINDS or text is None:
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
