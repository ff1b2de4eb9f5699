"""A conversation as tokens: which there are, and which are learnt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from roll.datasets.loader import Row
from roll.datasets.templates import PromptTemplate
from roll.datasets.tool_calls import Tool
from roll.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
Piece = tuple[str, bool]  # a text, and whether its tokens are learnt


class Turns:
    """Renders a conversation turn by turn, as a run would see it: what the model is asked is tokenized by itself, and
    so is what it answers. `remedy`: what to do where a template cannot write all turns in one row."""

    def __init__(
        self,
        template: PromptTemplate,
        train_on: Literal["all", "last"],
        remedy: str = "Set train_on: last, or another template",
    ):
        self._template, self._train_on, self._remedy = template, train_on, remedy
        self._tokenizer = template.tokenizer
        self._special = _special_ids(template.tokenizer)
        self._writes_tools: bool | None = None
        self._writes_calls: bool | None = None

    def encode(
        self, messages: Sequence[Message], row: Row, given: int = 0, tools: Sequence[Tool] = ()
    ) -> tuple[list[int], list[bool]]:
        """Tokens, and which are learnt: none of the first `given` messages. Raises ConfigError for tools, and calls of
        them, of which the template writes nothing."""
        if tools:
            self._check_tools(messages, row, tools)
        tokens: list[int] = []
        mask: list[bool] = []
        for text, is_learnt in self._pieces(messages, row, given, tools):
            starts = self._template.adds_special_tokens and not tokens
            ids = self._tokenizer(text, add_special_tokens=starts, verbose=False)["input_ids"]
            tokens += ids
            mask += self._learnt(ids) if is_learnt else [False] * len(ids)
        return tokens, mask

    def _learnt(self, ids: Sequence[int]) -> list[bool]:
        """An answer up to its end-of-turn token; white space that the template writes behind it is not the model's. A
        special token before anything else is one that the answer names."""
        ends = [place for place, token in enumerate(ids) if token in self._special]
        count = ends[-1] + 1 if ends else len(ids)
        if str(self._tokenizer.decode([*ids[count:]])).strip():
            count = len(ids)
        return [place < count for place in range(len(ids))]

    def _pieces(self, messages: Sequence[Message], row: Row, given: int, tools: Sequence[Tool]) -> Iterator[Piece]:
        template = self._template
        if self._takes_one_prompt:
            yield from self._one_answer(messages, row, tools)
            return
        self._check_calls(messages, row)
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant" and place >= given]
        learnt, done = answers if self._train_on == "all" else answers[-1:], ""
        if learnt[:1] == [0]:
            raise ConfigError(
                f"{row.where}: the conversation begins with the assistant, whom nothing has asked, so that this turn "
                "cannot be learnt. Put a message before it (system_key names a column), or leave it out"
            )
        for place in learnt:
            before = template.render_messages(messages[:place], row, True, tools)
            whole = template.render_messages(messages[: place + 1], row, False, tools)
            if not (before.startswith(done) and whole.startswith(before)):
                raise ConfigError(
                    f"{row.where}: {template.key}: the template writes turn {place + 1} otherwise once more follow, so "
                    f"the turns cannot be learnt in one row. {self._remedy}"
                )
            yield before[len(done) :], False
            yield whole[len(before) :], True
            done = whole

    def _one_answer(self, messages: Sequence[Message], row: Row, tools: Sequence[Tool]) -> Iterator[Piece]:
        """With templates that are made for one prompt, whose answer ends with the tokenizer's own token."""
        if [message["role"] for message in messages] != ["user", "assistant"]:
            raise ConfigError(
                f"{row.where}: {self._template.key}: it takes one prompt and one response, the row holds "
                f"{', '.join(message['role'] for message in messages)}. Use native, or a Jinja file"
            )
        if messages[1].get("tool_calls"):
            raise ConfigError(
                f"{row.where}: {self._template.key}: it writes no tool calls. Use native, or a Jinja file"
            )
        prompt, is_plain = messages[0]["content"], self._template.is_plain
        yield prompt if is_plain else self._template.render_messages(messages[:1], row, True, tools), False
        yield f"{messages[1]['content']}{self._tokenizer.eos_token or ''}", True

    @property
    def _takes_one_prompt(self) -> bool:
        return self._template.is_plain or self._template.form.takes_one_prompt

    def _check_tools(self, messages: Sequence[Message], row: Row, tools: Sequence[Tool]) -> None:
        """Once: it is the template that writes tools, and not the row."""
        if self._writes_tools is None:
            shown = messages[:1] if self._takes_one_prompt else messages
            with_them, without = (self._template.render_messages(shown, row, False, some) for some in (tools, ()))
            self._writes_tools = not self._template.is_plain and with_them != without
        if not self._writes_tools:
            raise ConfigError(
                f"{row.where}: {self._template.key}: the row offers tools, of which the template writes nothing. Use a "
                "template that does (native, if the tokenizer's own one does), or set tools_key: null"
            )

    def _check_calls(self, messages: Sequence[Message], row: Row) -> None:
        """Once: a template that leaves calls out would teach to answer nothing where one is due."""
        calling = next((place for place, message in enumerate(messages) if message.get("tool_calls")), None)
        if calling is None:
            return
        if self._writes_calls is None:
            said = [{**message, "content": message.get("content") or ""} for message in messages]
            silent = [{key: message[key] for key in message if key != "tool_calls"} for message in said]
            self._writes_calls = self._differ(said, silent, row)
        if not self._writes_calls:
            raise ConfigError(
                f"{row.where}: {self._template.key}: message {calling + 1} calls tools, of which the template writes "
                "nothing. Use a template that does (native, if the tokenizer's own one does), or write the call in the "
                "message's content"
            )

    def _differ(self, some: Sequence[Message], others: Sequence[Message], row: Row) -> bool:
        """True, too, of a template that takes the one alone."""
        try:
            whole, other = (self._template.render_messages(messages, row, False) for messages in (some, others))
        except ConfigError:
            return True
        return whole != other


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Those that have a name (eos_token and the like), and those that only their entry in the vocabulary calls so."""
    marked = (place for place, token in tokenizer.added_tokens_decoder.items() if token.special)
    return frozenset((*tokenizer.all_special_ids, *marked))
