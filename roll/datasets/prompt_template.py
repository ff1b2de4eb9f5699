"""A template with the tokenizer of a model: it renders the conversations of rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from roll.datasets.templates import (
    BASE,
    CHATML,
    EMPTY,
    FORMS,
    PLAIN,
    Form,
    is_text,
    template_problem,
    variables_problem,
)
from roll.errors import ConfigError
from roll.utils.files import expanded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from roll.datasets.loader import Row
    from roll.datasets.rows import Example
    from roll.datasets.tool_calls import Tool

_OF_TEXTS = (CHATML, EMPTY, BASE)
_SHOWS = "shows some. Use native, if the tokenizer's own template writes them, or a Jinja file"
_MARK = re.compile(r"<\|[a-z_]+\|>")


class RenderError(ConfigError):
    """A template that fails on a row."""


@dataclass(frozen=True)
class PromptTemplate:
    """Renders examples. `adds_special_tokens`: the tokenizer still has to put its own around the text. `opening`: what
    stands before the whole."""

    tokenizer: PreTrainedTokenizerBase
    key: str
    form: Form = field(default_factory=Form)
    is_plain: bool = False
    opening: str = ""

    @staticmethod
    def load(
        name: str, tokenizer: PreTrainedTokenizerBase, key: str, variables: Mapping[str, Any] = MappingProxyType({})
    ) -> PromptTemplate:
        """Loads a template, which sees `variables` as well.

        Raises ConfigError if the tokenizer has no chat template of its own or not the marks of one of ROLL's, and if
        the file cannot be read."""
        problem = template_problem(name, key) or variables_problem(name, variables, key)
        if problem is not None:
            raise ConfigError(problem)
        if name == PLAIN:
            return PromptTemplate(tokenizer, key, is_plain=True)
        if name not in FORMS:
            source = name if is_text(name) else expanded(name).read_text(encoding="utf-8")
            return PromptTemplate(tokenizer, key, Form(variables, source=source))
        form = replace(FORMS[name], variables={**FORMS[name].variables, **variables})
        if form.source is None and not tokenizer.chat_template:
            raise ConfigError(
                f"{key}: {name}, but the tokenizer {tokenizer.name_or_path!r} has no chat template. Set {key}: plain "
                "for a base model, or the path of a Jinja file"
            )
        known = tokenizer.get_vocab()
        if lacking := sorted({mark for mark in _MARK.findall(form.source or "") if mark not in known}):
            raise ConfigError(
                f"{key}: {name} marks turns with {' and '.join(lacking)}, which the tokenizer "
                f"{tokenizer.name_or_path!r} does not have: they would be plain text, and would not end a response. "
                f"Set {key}: native for the tokenizer's own template, or the path of a Jinja file"
            )
        return PromptTemplate(tokenizer, key, form, opening=_first_token(tokenizer) if form.source else "")

    @property
    def adds_special_tokens(self) -> bool:
        return self.is_plain

    def render(self, example: Example) -> str:
        """The text up to where the answer begins. Raises ConfigError with the row when the template fails on it."""
        if self.is_plain:
            if example.pictures:
                raise ConfigError(f"{example.row.where}: {self.key}: plain writes no pictures, and the row {_SHOWS}")
            if not example.is_text:
                raise ConfigError(
                    f"{example.row.where}: {self.key}: plain takes a bare prompt, the row holds messages. Use native, "
                    "or a Jinja file"
                )
            return example.text
        return self.render_messages(example.messages, example.row, tools=example.tools)

    def render_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        row: Row,
        asks: bool = True,
        tools: Sequence[Tool] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The text of these messages; with `asks`, up to where the answer to them begins. `variables`: what the
        template sees beside its own."""
        from jinja2 import TemplateError

        from roll.datasets.tool_calls import rendered

        if self.form.source in _OF_TEXTS and any(isinstance(message.get("content"), list) for message in messages):
            raise RenderError(f"{row.where}: {self.key}: the template writes no pictures, and the row {_SHOWS}")

        try:
            text = rendered(lambda form: self._applied(form, asks, tools, variables), messages)
        except (TemplateError, TypeError, ValueError) as error:
            raise RenderError(f"{row.where}: {self.key}: the template fails on this row: {error}") from error
        return self.opening + text + (self.form.suffix if asks else "")

    def writes_tools(self, messages: Sequence[Mapping[str, Any]], row: Row, tools: Sequence[Tool]) -> bool:
        """Whether the tools that a row offers are in the text of its messages."""
        if self.is_plain:
            return False
        with_them, without = (self.render_messages(messages, row, tools=some) for some in (tools, ()))
        return with_them != without

    def no_tools(self, row: Row, key: str) -> ConfigError:
        """Return the error for a template that does not write them. `key`: the one that names the column of tools."""
        return ConfigError(
            f"{row.where}: {self.key}: the row offers tools, but the template does not write them. Use a template that "
            f"does (native, if the tokenizer's own one does), or set {key}: null"
        )

    def _applied(
        self,
        messages: list[dict[str, Any]],
        asks: bool,
        tools: Sequence[Tool] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                self.form.adapted(messages),
                tools=[dict(tool) for tool in tools] or None,
                chat_template=self.form.source,
                add_generation_prompt=asks,
                tokenize=False,
                **{**self.form.variables, **variables},
            )
        )


def _first_token(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the token that the tokenizer itself puts before a text, such as Llama's `<|begin_of_text|>`: ROLL's own
    templates are tokenized without it."""
    bos = tokenizer.bos_token
    starts = tokenizer("x", verbose=False)["input_ids"][:1] if bos else []
    return str(bos) if starts == [tokenizer.bos_token_id] else ""
