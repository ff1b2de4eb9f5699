"""A conversation as tokens: which there are, and which are learnt."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from roll.configs.tables.sight import VisionModel
from roll.datasets.answers.parts import Message, reasoning_of
from roll.datasets.answers.prompted import PromptedAnswer, PromptedTurns
from roll.datasets.answers.template_coverage import Wordings, check_part
from roll.datasets.loader import Row
from roll.datasets.pictures.expansion import expand, expand_mask
from roll.datasets.pictures.placeholders import Placeholders
from roll.datasets.prompt_template import PromptTemplate
from roll.datasets.shown import num_pictures
from roll.datasets.tool_calls import Tool
from roll.errors import ConfigError
from roll.types.media import Media, Picture


class Encoded(NamedTuple):
    """A row: its tokens, which of them are learnt, and the pictures among them, each as many tokens as it has."""

    ids: list[int]
    learnt: list[bool]
    media: Media = ()


class Turns:
    """Renders a conversation turn by turn, as a run would see it: what the model is asked is tokenized by itself, and
    so is what it answers. `remedy`: what to do where all turns must be in one row and cannot. `vision`: the model, if
    it sees pictures."""

    def __init__(
        self,
        template: PromptTemplate,
        train_on: Literal["all", "last"],
        remedy: str = "",
        vision: VisionModel | None = None,
    ):
        self._template, self._train_on, self._remedy = template, train_on, remedy
        self._placeholders = None if vision is None else Placeholders(vision, template.tokenizer)
        self._turns = PromptedTurns(template)
        self._wordings = Wordings(self._turns, template.key)
        self._writes_tools: bool | None = None
        self._num_conversations = self._num_rows = self._num_tokens = self._num_last = 0

    @property
    def cost(self) -> str:
        """Text about the price of a template that changes earlier turns; "" if each conversation has been one row."""
        if self._num_rows == self._num_conversations:
            return ""
        return (
            f"{self._num_conversations} conversations are {self._num_rows} rows of {self._num_tokens} tokens, "
            f"{self._num_tokens / self._num_last:.1f} times those of the conversations: the template changes earlier "
            "turns when others follow, so each of their responses is a row of its own. train_on: last trains on the "
            "last turn only"
        )

    def encode(
        self,
        messages: Sequence[Message],
        row: Row,
        prefix: int = 0,
        tools: Sequence[Tool] = (),
        pictures: Sequence[Picture] = (),
    ) -> Encoded:
        """All turns in one row, as `rows` has them. Raises ConfigError where they are several."""
        rows = self.rows(messages, row, prefix, tools, pictures)
        if len(rows) > 1:
            raise ConfigError(
                f"{row.where}: {self._template.key}: the template writes earlier responses differently when more turns "
                f"follow, so they cannot all be trained on in one row. {self._remedy}"
            )
        return rows[0]

    def rows(
        self,
        messages: Sequence[Message],
        row: Row,
        prefix: int = 0,
        tools: Sequence[Tool] = (),
        pictures: Sequence[Picture] = (),
    ) -> list[Encoded]:
        """Tokens, and which are learnt: none of the first `prefix` messages. Every answer stands behind the prompt that
        asks for it; one with a `weight` of 0 is not learnt. It shares the row of the answers before it as long as that
        prompt begins with them; a template that writes earlier turns otherwise, without their reasoning for instance,
        makes it a row of its own. `pictures`: those that the messages show, in their order.

        Raises ConfigError for what the template does not write (tools, calls, reasoning, messages, pictures), and for
        an answer that does not end."""
        if self._placeholders is not None:
            self._placeholders.check_texts((messages, tools), row.where)
        if tools:
            self._check_tools(messages, row, tools)
        rows: list[Encoded] = []
        shown: list[int] = []  # pictures of each row
        done = ""
        for place, turn in self._prompted(messages, row, prefix, tools):
            if not self._turns.ends.is_ended(turn.ids):
                problem = self._turns.ends.problem(turn.ids)
                raise ConfigError(f"{row.where}: {self._template.key}: {problem}")
            if not rows or not turn.prompt.startswith(done):
                rows.append(Encoded([], []))
                shown.append(0)
                done = ""
            tokens, mask, _ = rows[-1]
            shown[-1] = num_pictures(messages[:place])
            starts = self._template.adds_special_tokens and not tokens
            prompt = self._turns.ids(turn.prompt[len(done) :], starts)
            end = self._turns.ends.of_answer(turn.ids)
            tokens += prompt + turn.ids
            mask += [False] * len(prompt) + [place < end for place in range(len(turn.ids))]
            done = turn.prompt + turn.answer
        if not rows:
            return rows
        if self._placeholders is not None:
            rows = [
                self._expanded(*each, row) for each in zip(rows, (pictures[:count] for count in shown), strict=True)
            ]
        lengths = [len(each.ids) for each in rows]
        self._num_conversations, self._num_rows = self._num_conversations + 1, self._num_rows + len(rows)
        self._num_tokens, self._num_last = self._num_tokens + sum(lengths), self._num_last + lengths[-1]
        return rows

    def _expanded(self, encoded: Encoded, pictures: Sequence[Picture], row: Row) -> Encoded:
        """The row as the model sees it, with the pictures that its messages show."""
        assert self._placeholders is not None
        self._placeholders.check(encoded.ids, len(pictures), row.where, self._template.key)
        if not pictures:
            return encoded
        whole = expand(np.array(encoded.ids, np.int32), pictures, self._placeholders.vision)
        return Encoded(whole.ids.tolist(), expand_mask(encoded.learnt, whole.media, len(whole.ids)), whole.media)

    def _prompted(
        self, messages: Sequence[Message], row: Row, given: int, tools: Sequence[Tool]
    ) -> Iterator[tuple[int, PromptedAnswer]]:
        """The answers that are learnt, each with its place among the messages."""
        if self._takes_one_prompt:
            yield 1, self._one_answer(messages, row, tools)
            return
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant" and place >= given]
        answers = [place for place in answers if messages[place].get("weight") != 0]
        if not answers:
            return
        learnt = answers if self._train_on == "all" else answers[-1:]
        if learnt[:1] == [0]:
            raise ConfigError(
                f"{row.where}: the conversation begins with the assistant, so this turn has no prompt and cannot be "
                "trained on. Put a message before it (system_key names a column), or leave it out"
            )
        wording = self._wordings.find(messages, learnt, row, tools)
        worded = wording.of(messages)
        for place in learnt:
            asked = self._turns.turn(worded, place, row, tools, wording.composes)
            check_part(worded[place], place + 1, asked.answer, f"{row.where}: {self._template.key}")
            yield place, asked

    def _one_answer(self, messages: Sequence[Message], row: Row, tools: Sequence[Tool]) -> PromptedAnswer:
        """The one turn of templates that are made for a single prompt. Its response ends with the tokenizer's own
        token."""
        if [message["role"] for message in messages] != ["user", "assistant"]:
            raise ConfigError(
                f"{row.where}: {self._template.key}: it takes one prompt and one response, the row holds "
                f"{', '.join(message['role'] for message in messages)}. Use native, or a Jinja file"
            )
        unwritten = "tool calls" if messages[1].get("tool_calls") else ""
        if num_pictures(messages):
            unwritten = "pictures"
        if (reasoning := reasoning_of(messages[1])) is not None:
            unwritten = reasoning[0]
        if unwritten:
            raise ConfigError(
                f"{row.where}: {self._template.key}: it writes no {unwritten}. Use native, or a Jinja file"
            )
        prompt, is_plain = messages[0]["content"], self._template.is_plain
        answer = f"{messages[1]['content']}{self._template.tokenizer.eos_token or ''}"
        prompt_text = prompt if is_plain else self._template.render_messages(messages[:1], row, True, tools)
        return PromptedAnswer(prompt_text, answer, self._turns.ids(answer))

    @property
    def _takes_one_prompt(self) -> bool:
        return self._template.is_plain or self._template.form.takes_one_prompt

    def _check_tools(self, messages: Sequence[Message], row: Row, tools: Sequence[Tool]) -> None:
        """Raises ConfigError if the row offers tools and the template ignores them. The template is tried once."""
        if self._writes_tools is None:
            first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), 1)
            self._writes_tools = self._template.writes_tools(messages[: max(first, 1)], row, tools)
        if not self._writes_tools:
            raise self._template.no_tools(row, "tools_key")
