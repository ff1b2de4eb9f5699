"""Whether a template writes all that a conversation holds, and in which words it wants it."""

from collections.abc import Mapping, Sequence
from typing import Any

from roll.datasets.answers.parts import (
    REASONING,
    Message,
    Part,
    Wording,
    leaves_out,
    marked,
    reasoning_of,
    shape_of,
    wordings,
)
from roll.datasets.answers.prompted import PromptedAnswer, PromptedTurns
from roll.datasets.loader import Row
from roll.datasets.templates import PromptTemplate, RenderError
from roll.datasets.tool_calls import Tool
from roll.errors import ConfigError

_OTHERWISE = "Use a template that writes it (native, if the tokenizer's own template does), "


def check_prompt(
    template: PromptTemplate, messages: Sequence[Mapping[str, Any]], row: Row, tools: Sequence[Tool]
) -> None:
    """Raises ConfigError if the template leaves out a call, or a text of another role than the assistant, in a prompt.
    It may leave out earlier responses and their reasoning."""
    shown, parts = marked([dict(message) for message in messages])
    try:
        text = template.render_messages(shown, row, True, tools)
    except RenderError:  # as of templates that refuse names that they do not know
        return
    for part in parts:
        is_answer = messages[part.message - 1]["role"] == "assistant" and not part.call
        if not is_answer and part.mark not in text:
            raise ConfigError(f"{row.where}: {template.key}: {_problem(part, parts, text)}")


class WrittenParts:
    """Finds for conversations of each shape, once, the words in which a template writes their parts. `key`: the
    template's, in the YAML."""

    def __init__(self, turns: PromptedTurns, key: str):
        self._turns, self._key = turns, key
        self._wordings: dict[Any, Wording] = {}

    def wording(self, messages: Sequence[Message], learnt: Sequence[int], row: Row, tools: Sequence[Tool]) -> Wording:
        """Return the wording in which the template writes every part of the messages: all of the answers that are
        trained on (at the places `learnt`), and before them calls and the messages of others than the assistant.
        Earlier reasoning may go. Raises ConfigError where there is none."""
        shape = shape_of(messages), tuple(learnt), bool(tools)
        if shape not in self._wordings:
            self._wordings[shape] = self._wording(messages, learnt, row, tools)
        return self._wordings[shape]

    def check_answer(self, message: Message, number: int, answer: str, row: Row) -> None:
        """Raises ConfigError where a template cuts a text of message `number`, since it reads it: DeepSeek's what
        stands before `</think>`."""
        reasoning = reasoning_of(message)
        for name, text in {
            "content": message.get("content"),
            **({reasoning[0]: reasoning[1]} if reasoning else {}),
        }.items():
            if isinstance(text, str) and leaves_out(text, answer):
                raise ConfigError(
                    f"{row.where}: {self._key}: the template leaves out a part of the {name} of message {number}. "
                    f"{_OTHERWISE}or leave it out of the row"
                )

    def _wording(self, messages: Sequence[Message], learnt: Sequence[int], row: Row, tools: Sequence[Tool]) -> Wording:
        problems: list[ConfigError] = []
        for wording in wordings(messages):
            try:
                self._check(wording, messages, learnt, row, tools)
                return wording
            except ConfigError as error:
                problems.append(error)
        raise next((problem for problem in problems if not isinstance(problem, RenderError)), problems[0])

    def _check(
        self, wording: Wording, messages: Sequence[Message], learnt: Sequence[int], row: Row, tools: Sequence[Tool]
    ) -> None:
        shown, parts = marked(messages)
        try:
            turns = self._all_turns(shown, wording, learnt, row, tools)
        except RenderError:  # as of templates that refuse names that they do not know
            self._all_turns(messages, wording, learnt, row, tools)
            return
        before = turns[learnt[-1] + 1].prompt
        for part in parts:
            is_answer = part.message in turns
            if part.message > learnt[-1] + 1:
                return
            if not is_answer and messages[part.message - 1]["role"] == "assistant" and not part.call:
                continue
            text = turns[part.message].answer if is_answer else before
            if part.mark not in text:
                raise ConfigError(f"{row.where}: {self._key}: {_problem(part, parts, text)}")
        for number, turn in turns.items():
            content = str(shown[number - 1].get("content") or "")
            if any(0 < content.count(mark) < turn.answer.count(mark) for mark in ("</think>", "[/THINK]")):
                raise ConfigError(
                    f"{row.where}: {self._key}: the template adds marks of thinking to those in the content "
                    f"of message {number}. Put the reasoning into {REASONING[0]}"
                )

    def _all_turns(
        self,
        messages: Sequence[Message],
        wording: Wording,
        learnt: Sequence[int],
        row: Row,
        tools: Sequence[Tool],
    ) -> dict[int, PromptedAnswer]:
        """Turns to learn, by the number of the response's message."""
        said = wording.of(messages)
        return {place + 1: self._turns.turn(said, place, row, tools, wording.composes) for place in learnt}


def _problem(part: Part, parts: Sequence[Part], text: str) -> str:
    calls = [other for other in parts if other.message == part.message and other.call]
    if part.call and not any(other.mark in text for other in calls):
        return (
            f"message {part.message} calls tools, but the template does not write the calls. {_OTHERWISE}or write the "
            "call in the message's content"
        )
    several = part.call and not any(other.mark in text for other in calls if other.call == part.call)
    if several:
        return (
            f"the template leaves out call {part.call} of message {part.message}. {_OTHERWISE}or write one message per "
            "call"
        )
    return f"the template leaves out {part.label}. {_OTHERWISE}or move it into the content, or leave it out of the row"
