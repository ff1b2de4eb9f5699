"""An answer of a conversation as it would be asked: the prompt, and what the template writes behind it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from roll.datasets.answers.end_tokens import Ends
from roll.datasets.answers.parts import REASONING, Message, reasoning_of, thinks
from roll.datasets.loader import Row
from roll.datasets.prompt_template import PromptTemplate
from roll.datasets.tool_calls import Tool
from roll.errors import ConfigError

_SWITCHES = ("enable_thinking", "thinking")  # Qwen3, GLM and Nemotron; DeepSeek-V3.1
_OPENED = re.compile(r"(<think>|\[THINK\])(\s*)\Z")
_NO_THOUGHTS = re.compile(r"\s*((<think>\s*)?</think>|(\[THINK\]\s*)?\[/THINK\])")
_ANSWER, _NEXT = "zqanswerx", "zqnextx"


@dataclass(frozen=True)
class PromptedAnswer:
    """A prompt, the answer's text behind it, and that text's tokens."""

    prompt: str
    answer: str
    ids: list[int]


class PromptedTurns:
    """Turns of conversations through a template."""

    def __init__(self, template: PromptTemplate):
        self._template, self._tokenizer = template, template.tokenizer
        self.ends = Ends(template.tokenizer)
        self._next_marks: dict[tuple[str, bool], str] = {}

    def ids(self, text: str, starts: bool = False) -> list[int]:
        """Its tokens; with `starts`, and the special ones that the tokenizer puts around a text."""
        return list(self._tokenizer(text, add_special_tokens=starts, verbose=False)["input_ids"])

    def turn(
        self, messages: Sequence[Message], place: int, row: Row, tools: Sequence[Tool], composes: bool = False
    ) -> PromptedAnswer:
        """The message at `place` as the answer to those before it, with the mark of the next role where that ends an
        answer. `composes`: reasoning that the template leaves out may be written behind a prompt that opens it. Raises
        ConfigError where the template fails, and where it does not write the answer behind its prompt."""
        prompt = self._template.render_messages(messages[:place], row, True, tools)
        whole = self._template.render_messages(messages[: place + 1], row, False, tools)
        if not whole.startswith(prompt) or (composes and thinks(messages[place])):
            prompt, whole = self._behind(messages, place, row, tools, prompt, whole, composes)
        answer = whole[len(prompt) :]
        ids = self.ids(answer)
        if not self.ends.is_ended(ids) and (mark := self._next_mark(messages, place, row, tools)):
            answer += mark
            ids = self.ids(answer)
        return PromptedAnswer(prompt, answer, ids)

    def _next_mark(self, messages: Sequence[Message], place: int, row: Row, tools: Sequence[Tool]) -> str:
        """Return the token that begins the message behind an answer, if it ends answers; "" otherwise. Example of
        GLM-4.5: `<|observation|>` behind calls of tools, `<|user|>` behind other answers."""
        calls = bool(messages[place].get("tool_calls"))
        role = messages[place + 1]["role"] if place + 1 < len(messages) else "tool" if calls else "user"
        if (role, calls) not in self._next_marks:
            said = [*messages[:place], {**messages[place], "content": _ANSWER}]
            try:
                alone = self._template.render_messages(said, row, False, tools)
                both = self._template.render_messages([*said, {"role": role, "content": _NEXT}], row, False, tools)
            except ConfigError:
                return ""
            between = both[both.rfind(_ANSWER) : both.rfind(_NEXT)] if _ANSWER in both and _NEXT in both else ""
            marks = [token for token in self.ids(between) if token in self.ends.tokens]
            mark = str(self._tokenizer.decode(marks[-1:]))
            self._next_marks[role, calls] = "" if mark in alone[alone.rfind(_ANSWER) :] else mark
        return self._next_marks[role, calls]

    def _behind(
        self,
        messages: Sequence[Message],
        place: int,
        row: Row,
        tools: Sequence[Tool],
        prompt: str,
        whole: str,
        composes: bool,
    ) -> tuple[str, str]:
        """Prompt and whole text of a turn whose answer the template does not write behind the prompt that it makes.

        An answer is asked with or without thinking as it reasons, where a template can. What is written of it may stand
        behind another past than that which it was asked after. A prompt that opens the thinking, of which the template
        writes nothing in answers, is followed by the reasoning and by its end."""
        template, message = self._template, messages[place]
        prompts = [prompt]
        if template.form.source is None and not template.form.variables:
            switch: dict[str, bool] = dict.fromkeys(_SWITCHES, thinks(message))
            prompts.append(template.render_messages(messages[:place], row, True, tools, switch))
        if whole.startswith(prompts[-1]):
            return prompts[-1], whole
        for opened in prompts if composes else ():
            opening = _OPENED.search(opened)
            if opening and whole.startswith(before := opened[: opening.start()]):
                said = _NO_THOUGHTS.sub("", whole[len(before) :], count=1)
                if not _is_rest(said, message, opening[1]):
                    continue
                return opened, opened + _thoughts(message, opening[1], bool(opening[2])) + said.lstrip()
        if answer := self._behind_another_past(messages, place, row, tools, prompt, whole):
            return prompt, prompt + answer
        shared = _num_shared(prompt, whole)
        raise ConfigError(
            f"{row.where}: {template.key}: the template asks for message {place + 1} with {prompt[-30:]!r} but writes "
            f"{whole[max(shared - 15, 0) : shared + 25]!r} there, so the model would be trained on another prompt than "
            f"it is given. Set template: {'native' if thinks(message) else 'native_nonthinking'}, or another template"
        )

    def _behind_another_past(
        self, messages: Sequence[Message], place: int, row: Row, tools: Sequence[Tool], prompt: str, whole: str
    ) -> str:
        """An answer where the template writes what is before it otherwise than when it asked; "" where it cannot be
        found. Example of gpt-oss: reasoning before calls of tools is there when the final answer is asked, and no more
        once it is written; of Mistral: the system prompt stands beside the last question alone, and is gone once that
        is answered. The answer begins behind the last opening of a turn that it shares with any other, or, where
        nothing opens turns, behind the last end of a question."""
        answer = {key: value for key, value in messages[place].items() if key not in REASONING}
        opening = prompt[_num_shared(prompt, self._template.render_messages(messages[:place], row, False, tools)) :]
        opening = opening or _behind_content(prompt, messages[place - 1])
        other = self._template.render_messages([*messages[:place], {**answer, "content": _ANSWER}], row, False, tools)
        shared = whole[: _num_shared(whole, other)]
        start = shared.rfind(opening) + len(opening)
        if not opening or opening not in shared:
            return ""
        head, begun = other[start:].partition(_ANSWER)[0], shared[start:]  # answers may begin as _ANSWER does
        return whole[start:] if (head.startswith(begun) or begun.startswith(head)) and opening not in head else ""


def _behind_content(prompt: str, message: Message) -> str:
    """Return the part of a prompt behind the last message's content."""
    content = message.get("content")
    text = isinstance(content, str) and content.strip()
    return prompt.rpartition(text)[2] if text and text in prompt else ""


def _num_shared(one: str, other: str) -> int:
    """Characters with which both begin."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _is_rest(said: str, message: Message, opening: str) -> bool:
    """Whether a template has written of a content with reasoning what stands behind that alone."""
    content = str(message.get("content") or "")
    rest = content.rpartition(f"{opening[0]}/{opening[1:]}")[2]
    return reasoning_of(message) is not None or said.lstrip().startswith(rest.strip())


def _thoughts(message: Message, opening: str, has_lines: bool) -> str:
    """The reasoning behind a prompt that has opened it, and its end, with line breaks where the opening has one."""
    closing = f"{opening[0]}/{opening[1:]}"
    reasoning = reasoning_of(message)
    inner = str(message.get("content") or "").rpartition(closing)[0].replace(opening, "")
    text = (reasoning[1] if reasoning else inner).strip()
    return f"{text}\n{closing}\n\n" if has_lines else f"{text}{closing}"
