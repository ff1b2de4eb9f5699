"""Whether a template writes all that a conversation holds, and in which words it wants it."""

from collections.abc import Mapping, Sequence
from typing import Any

from roll.datasets.answers.parts import REASONING, Message, Wording, shape_of, unwritten, wordings
from roll.datasets.answers.prompted import PromptedAnswer, PromptedTurns
from roll.datasets.loader import Row
from roll.datasets.prompt_template import RenderError
from roll.datasets.tool_calls import Tool
from roll.errors import ConfigError


def check_written(messages: Sequence[Mapping[str, Any]], text: str, at: str) -> None:
    """Raises ConfigError if a prompt lacks a call, or a text of another role than the assistant. A template may leave
    out earlier responses and their reasoning. `at`: the row, and the template's key."""
    for number, message in enumerate(messages, start=1):
        if message["role"] == "assistant":
            message = {"tool_calls": message.get("tool_calls")}
        check_part(message, number, text, at)


def check_part(message: Mapping[str, Any], number: int, text: str, at: str) -> None:
    """Raises ConfigError if the text lacks a part of message `number`."""
    if (part := unwritten(message, text)) is not None:
        raise ConfigError(
            f"{at}: the template leaves out {part} of message {number}. Use a template that writes it (native, if the "
            "tokenizer's own template does), or move it into the content, or leave it out of the row"
        )


class Wordings:
    """Finds for conversations of each shape, once, the words in which a template writes their parts. `key`: the
    template's, in the YAML."""

    def __init__(self, turns: PromptedTurns, key: str):
        self._turns, self._key = turns, key
        self._by_shape: dict[Any, Wording] = {}

    def find(self, messages: Sequence[Message], learnt: Sequence[int], row: Row, tools: Sequence[Tool]) -> Wording:
        """Return the wording in which the template writes every part of the messages: all of the answers that are
        trained on (at the places `learnt`), and before them calls and the messages of others than the assistant.
        Raises ConfigError where there is none."""
        shape = shape_of(messages), tuple(learnt), bool(tools)
        if shape not in self._by_shape:
            self._by_shape[shape] = self._first(messages, learnt, row, tools)
        return self._by_shape[shape]

    def _first(self, messages: Sequence[Message], learnt: Sequence[int], row: Row, tools: Sequence[Tool]) -> Wording:
        problems: list[ConfigError] = []
        for wording in wordings(messages):
            try:
                said = wording.of(messages)
                turns = {place: self._turns.turn(said, place, row, tools, wording.composes) for place in learnt}
                self._check(said, turns, f"{row.where}: {self._key}")
                return wording
            except ConfigError as error:
                problems.append(error)
        raise next((problem for problem in problems if not isinstance(problem, RenderError)), problems[0])

    def _check(self, said: Sequence[Message], turns: Mapping[int, PromptedAnswer], at: str) -> None:
        last = max(turns)
        before = [{"role": "assistant"} if place in turns else said[place] for place in range(last)]
        for place, turn in turns.items():
            check_part(said[place], place + 1, turn.answer, at)
            content = str(said[place].get("content") or "")
            if any(0 < content.count(mark) < turn.answer.count(mark) for mark in ("</think>", "[/THINK]")):
                raise ConfigError(
                    f"{at}: the template adds marks of thinking to those in the content of message {place + 1}. Put "
                    f"the reasoning into {REASONING[0]}"
                )
        check_written(before, turns[last].prompt, at)
