"""How a conversation becomes the text that the model continues: the `template` key.

- `native`: the tokenizer's own chat template (ROLL calls it `qwen2_5` too; `qwen3` is native with thinking on);
- `plain`: no template, the prompt as it is, with the special tokens the tokenizer itself puts around a text (such as
  BOS);
- anything else: the path of a Jinja chat template, which sees `messages`, `add_generation_prompt` and the tokenizer's
  special tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roll.datasets.rows import Example
from roll.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NATIVE: Mapping[str, Mapping[str, Any]] = {"native": {}, "qwen2_5": {}, "qwen3": {"enable_thinking": True}}
PLAIN = "plain"
UNAVAILABLE = ("chatml", "base", "empty", "longCOT_qwen2.5", "longcot_V3")  # names of ROLL without a counterpart here


def template_problem(name: str, key: str) -> str | None:
    """What is wrong with the template setting `name` at YAML path `key`, found without a tokenizer; None if nothing."""
    if name in NATIVE or name == PLAIN:
        return None
    if name in UNAVAILABLE:
        return (
            f"{key}: ROLL's template {name!r} is not built in; write it as a Jinja file and set its path, or use native"
        )
    path = Path(name).expanduser()
    if not path.is_file():
        return f"{key}: {name!r} is neither native, plain, nor an existing Jinja file"
    from jinja2 import TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    try:
        ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(path.read_text(encoding="utf-8"))
    except TemplateSyntaxError as error:
        # `generation` is a tag that only transformers knows; it is checked when the template is used
        return None if "generation" in str(error) else f"{key}: {name}:{error.lineno}: {error.message}"
    except (OSError, UnicodeDecodeError) as error:
        return f"{key}: cannot read {name}: {error}"
    return None


@dataclass(frozen=True)
class PromptTemplate:
    """Renders examples. `adds_special_tokens`: the tokenizer still has to put its own around the text."""

    tokenizer: PreTrainedTokenizerBase
    key: str
    source: str | None = None  # None: the tokenizer's own
    is_plain: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def load(name: str, tokenizer: PreTrainedTokenizerBase, key: str) -> PromptTemplate:
        """Raises ConfigError if the tokenizer has no chat template of its own, or the file cannot be read."""
        problem = template_problem(name, key)
        if problem is not None:
            raise ConfigError(problem)
        if name == PLAIN:
            return PromptTemplate(tokenizer, key, is_plain=True)
        if name not in NATIVE:
            return PromptTemplate(tokenizer, key, Path(name).expanduser().read_text(encoding="utf-8"))
        if not tokenizer.chat_template:
            raise ConfigError(
                f"{key}: {name}, but the tokenizer {tokenizer.name_or_path!r} has no chat template. Set {key}: plain "
                "for a base model, or the path of a Jinja file"
            )
        return PromptTemplate(tokenizer, key, variables=NATIVE[name])

    @property
    def adds_special_tokens(self) -> bool:
        return self.is_plain

    def render(self, example: Example) -> str:
        """The text up to where the answer begins. Raises ConfigError with the row when the template fails on it."""
        if self.is_plain:
            if not example.is_text:
                raise ConfigError(
                    f"{example.row.where}: {self.key}: plain takes a bare prompt, the row holds messages. Use native, "
                    "or a Jinja file"
                )
            return example.text
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in example.messages],
                chat_template=self.source,
                add_generation_prompt=True,
                tokenize=False,
                **self.variables,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ConfigError(f"{example.row.where}: {self.key}: the template fails on this row: {error}") from error
        assert isinstance(text, str)
        return text
