"""Chat messages as token ids that can be put one after the other: what was sampled is never encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from roll.datasets.answers.ends import Ends
from roll.datasets.encoding import decoder, special_tokens
from roll.datasets.messages import clean_messages
from roll.datasets.templates import PromptTemplate
from roll.datasets.tool_calls import plain, rendered
from roll.envs.base import Conversation
from roll.errors import ConfigError, EnvError, describe
from roll.utils.thinking import answer_opening, marking_tokens, without_marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER = "\u2060answer\u2060"  # stands for an answer when a template shows what follows one
Messages = Sequence[tuple[str, str]]


class ChatEncoder:
    """Turns messages into ids with the model's chat template.

    Example (Qwen): `start([("user", "hi")])` ends in `<|im_start|>assistant\\n`; after the sampled `yes<|im_end|>`
    comes `follow_up("go on")`: `\\n<|im_start|>user\\ngo on<|im_end|>\\n<|im_start|>assistant\\n`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str = "native", reads_tool_calls: bool = False):
        """`reads_tool_calls`: arguments of a message's tool calls that are JSON texts become mappings first, or, for
        templates that want them so, texts again."""
        self._tokenizer = tokenizer
        self._reads_tool_calls = reads_tool_calls
        self._template = PromptTemplate.load(template, tokenizer, "actor_train.data_args.template")
        self.ends = Ends(tokenizer)
        self._decode = decoder(tokenizer)
        self._has_special_marks = bool(marking_tokens(special_tokens(tokenizer)))
        self.answer_opening = answer_opening(self._render([("user", "x")]))
        """What the template itself puts at the beginning of every answer."""

    def start(self, messages: Messages) -> np.ndarray:
        """Ids of a conversation up to where the answer begins. int32."""
        return self.encode(self._render(messages))

    def conversation(self, conversation: Conversation) -> np.ndarray:
        """Ids of a conversation that an environment keeps, up to where the answer begins. int32. Raises EnvError if the
        chat template does not take it."""
        try:
            messages = clean_messages(list(conversation.messages), parses=self._reads_tool_calls)
            return self.encode(self.render(messages, plain(list(conversation.tools))))
        except Exception as error:  # whatever a template raises
            raise EnvError(
                f"the chat template does not take the environment's conversation: {describe(error)}"
            ) from None

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] = (), asks: bool = True) -> str:
        """The text of clean messages. `asks`: up to where the answer begins. Raises what the template raises."""
        return rendered(lambda form: self._rendered(form, list(tools) or None, asks), messages)

    @property
    def template_source(self) -> str:
        """The Jinja text of the chat template."""
        source = self._template.form.source or self._tokenizer.chat_template
        return source if isinstance(source, str) else str((source or {}).get("default", ""))

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._tokenizer

    def follow_up(self, answer_ids: np.ndarray, message: str) -> np.ndarray:
        """Ids between a sampled answer and the next one: the end of the answer's turn, unless the answer has ended, and
        the next user message. int32.

        A turn ends once: with the token that the policy sampled, if engines stop there, which then stands for the
        template's own end. Example of gpt-oss: `yes<|return|>` is followed by `<|start|>user`, not by `<|end|>`."""
        after = self._ids_behind([("user", "x"), ("assistant", ANSWER), ("user", message)])
        said, closing = answer_ids.tolist(), self._closing
        if said and (said[-1] in self.ends.tokens or said[-1:] == closing[-1:].tolist()):
            begins_next = not len(closing) and said[-1:] == after[:1].tolist()  # GLM's: the next role's mark
            return after[len(closing) + begins_next :]
        overlaps = (n for n in range(len(closing), 0, -1) if said[-n:] == closing[:n].tolist())
        return after[next(overlaps, 0) :]

    @cached_property
    def _closing(self) -> np.ndarray:
        """Ids with which the template ends an assistant's turn that others follow, up to the last special one."""
        after = self._ids_behind([("user", "x"), ("assistant", ANSWER), ("user", "x")]).tolist()
        try:
            last = self._ids_behind([("user", "x"), ("assistant", ANSWER)], asks=False).tolist()
        except TemplateError:
            last = []
        special = self.ends.special
        shared = next(
            (i for i, (a, b) in enumerate(zip(after, last, strict=False)) if a != b), min(len(after), len(last))
        )
        ends = [place for place in range(shared) if after[place] in special]
        if not ends and last[:1] and last[0] in self.ends.tokens and after[0] in special:  # gpt-oss: one for another
            ends = [0]
        return np.array(after[: ends[-1] + 1 if ends else 0], np.int32)

    def _ids_behind(self, messages: Messages, asks: bool = True) -> np.ndarray:
        """Ids of what the template writes behind the answer."""
        _, found, after = self._render(messages, asks).partition(ANSWER)
        if not found or ANSWER in after:
            raise ConfigError(
                "actor_train.data_args.template: the chat template changes the assistant's messages, so a "
                "conversation cannot be continued after sampled tokens. Use another Jinja template."
            )
        return self.encode(after)

    def decode(self, ids: np.ndarray) -> str:
        """The text of an answer, without special tokens but those that mark its thinking."""
        return self._decode([ids])[0]

    def as_words(self, answer: str) -> str:
        """An answer as part of a message: marks of thinking that are special tokens would be some there, too."""
        return without_marks(answer) if self._has_special_marks else answer

    def show(self, ids: np.ndarray) -> str:
        """The text with special tokens."""
        return str(self._tokenizer.decode(ids.tolist()))

    def encode(self, text: str) -> np.ndarray:
        """Ids of a text in which special tokens are named. int32."""
        if isinstance(self._tokenizer, PreTrainedTokenizerFast):  # its Rust part alone takes a third of the time
            ids = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        else:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(ids, np.int32)

    def _render(self, messages: Messages, asks: bool = True) -> str:
        return self._rendered([{"role": role, "content": content} for role, content in messages], asks=asks)

    def _rendered(self, messages: list[dict[str, Any]], tools: list[Any] | None = None, asks: bool = True) -> str:
        return self._template.opening + str(
            self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self._template.form.source,
                add_generation_prompt=asks,
                tokenize=False,
                **self._template.form.variables,
            )
        )
