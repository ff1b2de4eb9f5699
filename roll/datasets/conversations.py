"""Rows with answers: conversations become token ids, and which of them are learnt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from roll.configs.sections.data import DataArgs, Truncation
from roll.configs.tables.sight import VisionModel
from roll.datasets.answers.parts import reasoning_of
from roll.datasets.answers.turns import Encoded, Message, Turns
from roll.datasets.chosen_rows import Texts
from roll.datasets.encoding import cut_of, shortened
from roll.datasets.loader import DataFile, DataSource, Row
from roll.datasets.media import BLIND, check_text_alone
from roll.datasets.messages import conversation_column, messages_in, messages_of_text
from roll.datasets.pictures.expansion import cut_media
from roll.datasets.pictures.lengths import ShowsPictures, measured
from roll.datasets.pictures.placing import RowPictures
from roll.datasets.preflight import row_problems
from roll.datasets.prompt_template import PromptTemplate
from roll.datasets.rows import shown
from roll.datasets.shown import missing_files, named_columns, num_pictures
from roll.datasets.sources import Choose, all_rows, data_sources
from roll.datasets.tool_calls import Tool, plain, tools_in
from roll.datasets.usual_columns import Forgotten
from roll.errors import ConfigError
from roll.types.batch import Rows
from roll.types.media import Media, PictureSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Conversation:
    """Messages, of which the assistant's is the last, and the tools that were offered. The first `num_context_messages`
    are a prompt: nothing of them is learnt. `unanswered`: how many messages of the row nobody has answered; they are
    left out. `pictures`: those that the messages show."""

    messages: list[Message]
    tools: Sequence[Tool] = ()
    num_context_messages: int = 0
    unanswered: int = 0
    pictures: tuple[PictureSource, ...] = ()


@dataclass(frozen=True)
class Columns:
    """Columns of a row's texts, and the turns to learn: all of the assistant's, or the last. `sees`: the model sees
    pictures; else rows that show any are refused."""

    prompt: str
    query: str | None
    response: str
    system: str | None
    tools: str | None = None
    train_on: Literal["all", "last"] = "all"
    sees: bool = False

    def read(self, row: Row, args: DataArgs, key: str) -> Conversation:
        """The row's conversation, which ends with the assistant. Raises ConfigError that names the row and the key."""
        pictures = check_media(row, args, key, self.sees)
        column = args.messages or conversation_column(row, self.prompt)
        tools = () if self.tools is None else tools_in(row, self.tools)
        answer: list[Message] = []
        if column is not None:
            whole = messages_in(row.value(column), row, column, f"{key}.messages", self.sees)
        else:
            prompt = prompt_in(row, self.prompt, self.query, self.sees)
            answer = ends_with_answer(self._answer(row), row, self.response)
            whole = [*prompt, *answer]
        whole, shown = placed(pictures, row, whole)
        messages = whole if column is None else up_to_answer(whole, row, column)
        unanswered = len(whole) - len(messages)
        shown = shown[: num_pictures(messages)]
        messages = with_system(messages, row, self.system, args.system_prompt)
        num_context = len(messages) - len(answer) if answer else 0
        self._check_says_something(messages, num_context, row)
        return Conversation(messages, tools, num_context, unanswered, shown)

    def texts(self, row: Row, args: DataArgs, key: str) -> Texts:
        """The last answer of a conversation, and all before it."""
        talk = self.read(row, args, key)
        places = tuple(source.place for source in talk.pictures)
        return Texts(shown(talk.messages[:-1]), (shown(talk.messages[-1:]),), places)

    def _check_says_something(self, messages: list[Message], num_context: int, row: Row) -> None:
        answers = [
            place for place, message in enumerate(messages) if message["role"] == "assistant" and place >= num_context
        ]
        answers = [place for place in answers if messages[place].get("weight") != 0]
        for place in answers if self.train_on == "all" else answers[-1:]:
            if says_nothing(messages[place]):
                raise ConfigError(
                    f"{row.where}: message {place + 1} (assistant) is empty, so the model would learn to end at once. "
                    "Correct the row, leave it out, or give the message a weight of 0"
                )

    def reads(self, row: Row, args: DataArgs) -> list[str | None]:
        """The columns that a run reads of the row."""
        column = args.messages or conversation_column(row, self.prompt)
        texts = [self.prompt, self.query, self.response] if column is None else [column]
        return [*texts, self.system, self.tools, *(named_columns(args) if self.sees else ())]

    def _answer(self, row: Row) -> list[Message]:
        value = messages_of_text(plain(row.value(self.response)))
        if isinstance(value, Mapping | list):
            return messages_in(value, row, self.response, "response_key")
        return [{"role": "assistant", "content": text_in(row, self.response, "response_key")}]


def load_conversations(
    args: DataArgs,
    key: str,
    columns: Columns,
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    template: str | None = None,
    choose: Choose = all_rows,
    vision: VisionModel | None = None,
) -> Rows:
    """All rows of `data_args` (at YAML path `key`) that `choose` gives, but for those of which nothing is learnt; a
    row's first token never is, for nothing predicts it. A conversation is several rows where the template changes
    earlier turns. `vision`: the model, if it sees pictures and `columns` read them; their pixels are read when a row is
    learnt. Raises ConfigError for a row that cannot be read or rendered, and for rows longer than `max_tokens` under
    `truncation: error`."""
    text, vision, sources = opened(args, key, tokenizer, template, vision)
    turns = Turns(text, columns.train_on, vision=vision)
    used: list[Encoded] = []
    num_rows = num_with_tools = num_unanswered = num_long = num_through_pictures = longest = 0
    forgotten = Forgotten()
    read = ((row, columns.read(row, args, key)) for row in choose(sources))
    encoded = (
        (row, said, one)
        for row, said, pictures in measured(read, vision and vision.sizes)
        for one in turns.rows(said.messages, row, said.num_context_messages, said.tools, pictures)
    )
    for row, conversation, one in encoded:
        num_rows, num_with_tools = num_rows + 1, num_with_tools + bool(conversation.tools)
        num_unanswered += conversation.unanswered > 0
        has_system = conversation.messages[0]["role"] in ("system", "developer")
        forgotten.add(row, columns.reads(row, args), has_system)
        if len(one.ids) > max_tokens:
            num_long, longest = num_long + 1, max(longest, len(one.ids))
            if args.truncation in ("error", "drop"):
                continue
            shorter = cut(one, max_tokens, args.truncation)
            if shorter is None:
                num_through_pictures += 1
                continue
            one = shorter
        mask = predicted(one.learnt)
        if any(mask):
            used.append(Encoded(one.ids, mask, one.media))
    if args.truncation == "error" and num_long:
        raise ConfigError(
            f"{key}: {num_long} of {num_rows} rows are longer than sequence_length = {max_tokens} tokens; the longest "
            f"has {longest}. Raise sequence_length, or set {key}.truncation: left, right, middle or drop"
        )
    if not used:
        raise ConfigError(f"{key}.file_name: no rows to learn from in {', '.join(args.file_name)} ({num_rows} rows)")
    for sentence in forgotten.warnings():
        logger.warning("%s: %s", key, sentence)
    counts = f"{num_with_tools} of them with tools, {num_long} too long"
    logger.info("%s: %d rows, %s, %d used", key, num_rows, counts, len(used))
    if num_through_pictures:
        logger.info("%s: %d rows are left out, since a cut would go through their pictures", key, num_through_pictures)
    if num_unanswered:
        logger.info(
            "%s: %d rows end with messages without a response: those messages are left out", key, num_unanswered
        )
    if turns.cost:
        logger.info("%s: %s", key, turns.cost)
    return rows_of_encoded(used)


def rows_of_encoded(encoded: Sequence[Encoded]) -> Rows:
    """The rows, with pictures if some show any."""
    media = [each.media for each in encoded]
    return Rows.of([each.ids for each in encoded], [each.learnt for each in encoded], media if any(media) else None)


def cut(encoded: Encoded, most: int, how: Truncation) -> Encoded | None:
    """The row within its length; None where the cut would take a picture, or a part of one, that the rest follows."""
    media: Media | None = cut_media(encoded.media, *cut_of(len(encoded.ids), most, how), len(encoded.ids))
    if media is None:
        return None
    return Encoded(shortened(encoded.ids, most, how), shortened(encoded.learnt, most, how), media)


# What runs on rows read of pictures.


def check_media(row: Row, args: DataArgs, key: str, sees: bool) -> RowPictures | None:
    """Return the reader of rows' pictures, for a model that sees. Raises ConfigError for what the model does not
    take."""
    if not sees:
        check_text_alone(row, BLIND)
        return None
    pictures = RowPictures(args, key)
    if (what := pictures.problem(row)) is not None:
        raise ConfigError(what)
    return pictures


def placed(
    pictures: RowPictures | None, row: Row, messages: list[Message]
) -> tuple[list[Message], tuple[PictureSource, ...]]:
    """The messages with a part for each picture of the row, and the pictures."""
    if pictures is None:
        return messages, ()
    shown, sources = pictures.placed(row, tuple(messages))
    return [dict(message) for message in shown], sources


def opened(
    args: DataArgs,
    key: str,
    tokenizer: PreTrainedTokenizerBase,
    template: str | None,
    vision: VisionModel | None,
) -> tuple[PromptTemplate, VisionModel | None, Sequence[DataSource]]:
    """The template of these data_args, the model under their limits, and their files, read without their pictures."""
    sources, problems = data_sources(args, key)
    if problems:
        raise ConfigError(*problems)
    if vision is not None:
        sources = [source.without_pictures(named_columns(args)) for source in sources]
        vision = vision.with_limits(args.image_min_pixels, args.image_max_pixels)
    at = "global_template" if template is not None else f"{key}.template"
    return PromptTemplate.load(template or args.template, tokenizer, at, args.template_kwargs), vision, sources


def predicted(mask: Sequence[bool]) -> list[bool]:
    """The tokens of a row that are learnt, without its first one."""
    return [learnt and place > 0 for place, learnt in enumerate(mask)]


class Reads(Protocol):
    """How a row is read. Raises ConfigError that names the row and the key."""

    @property
    def sees(self) -> bool: ...

    def read(self, row: Row, args: DataArgs, key: str) -> ShowsPictures: ...


def look_at_rows(
    args: DataArgs, key: str, columns: Reads, reach: bool = True, if_shown: Callable[[], Iterable[str]] = tuple
) -> Iterator[str]:
    """Yield problems of the files that `data_args` name, and of the first rows of each file. Without `reach` only files
    of this machine are looked at. `if_shown`: what else is wrong where a row shows pictures."""
    shows = False
    sources, problems = data_sources(args, key, reach)
    if reach:
        yield from problems
    else:
        sources = [source for source in sources if isinstance(source, DataFile)]

    def see(row: Row) -> None:
        nonlocal shows
        pictures = columns.read(row, args, key).pictures
        shows |= bool(pictures)
        if missing := list(missing_files(pictures)):
            raise ConfigError(*missing)

    for source in sources:
        yield from row_problems(source.without_pictures(named_columns(args)) if columns.sees else source, see)
    yield from if_shown() if shows else ()


def says_nothing(message: Message) -> bool:
    """True of an empty answer, from which a model learns to end at once."""
    return not message["content"].strip() and not message.get("tool_calls") and reasoning_of(message) is None


def text_in(row: Row, column: str, key: str) -> str:
    """Return the text in the column that `key` names. Raises ConfigError where it is no text."""
    value = row.value(column)
    if not isinstance(value, str):
        raise ConfigError(not_there(row, column, key, value, "a text"))
    return value


def prompt_in(row: Row, column: str, query: str | None, sees: bool = False) -> list[Message]:
    """The messages that ask, where a row has no conversation: a text, with more of it from the column `query`, or a
    list of messages, whose last one has the query behind it. `sees`: parts of them may show pictures. Raises
    ConfigError where there are none."""
    value = messages_of_text(plain(row.value(column)))
    if isinstance(value, list):
        messages = messages_in(value, row, column, "prompt_key", sees)
    else:
        messages = [{"role": "user", "content": text_in(row, column, "prompt_key")}]
    if query is not None and row.value(query):
        more = text_in(row, query, "query_key")
        asked = messages[-1]["content"]
        parts = [*asked, {"type": "text", "text": f"\n{more}"}] if isinstance(asked, list) else f"{asked}\n{more}"
        messages[-1] = {**messages[-1], "content": parts}
    return messages


def with_system(messages: list[Message], row: Row, column: str | None, text: str | None = None) -> list[Message]:
    """The messages behind the system prompt of a column, unless they have one, or the row has none: rows without hold
    null or an empty text there. `text` is that of all rows that bring none. Raises ConfigError where it is none."""
    if messages[0]["role"] in ("system", "developer"):
        return messages
    if column is None or (row.value(column) in (None, "") and column.partition(".")[0] in row.values):
        return [{"role": "system", "content": text}, *messages] if text else messages
    return [{"role": "system", "content": text_in(row, column, "system_key")}, *messages]


def not_there(row: Row, column: str, key: str, value: object, wanted: str) -> str:
    if value is None and column in row.values:
        return f"{row.where}: column {column!r} is empty. Correct the row, leave it out, or set {key} to another column"
    state = "is missing" if value is None else f"holds {type(value).__name__}, not {wanted}"
    names = ", ".join(map(str, row.values)) or "none"
    return f"{row.where}: column {column!r} {state}; the row has {names}. Set {key} to the column's name"


def up_to_answer(messages: list[Message], row: Row, column: str) -> list[Message]:
    """The messages up to the assistant's last one. Raises ConfigError where it says nothing."""
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers:
        roles = ", ".join(message["role"] for message in messages)
        raise ConfigError(f"{row.where}: column {column!r} has no message of the assistant to train on; it has {roles}")
    return messages[: answers[-1] + 1]


def ends_with_answer(messages: list[Message], row: Row, column: str) -> list[Message]:
    """The messages. Raises ConfigError where the last one is not the assistant's."""
    if messages[-1]["role"] != "assistant":
        raise ConfigError(
            f"{row.where}: column {column!r} ends with a message of {messages[-1]['role']!r}; the last turn must be "
            "the assistant's, which is trained on"
        )
    return messages
