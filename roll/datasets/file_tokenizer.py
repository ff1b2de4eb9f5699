"""The tokenizer of a folder without transformers, whose import takes three seconds: for a plan, which reads rows as the
run will."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SAID = ("special_tokens_map.json", "tokenizer_config.json")


def file_tokenizer(folder: Path, name: str) -> PreTrainedTokenizerBase | None:
    """Return what reads tokenizer.json and the chat template of a folder; None if transformers has to. `name`: the
    model's, for messages."""
    from tokenizers import Tokenizer

    said: dict[str, Any] = {}
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        for file in _SAID:
            if (folder / file).is_file():
                said |= json.loads((folder / file).read_text(encoding="utf-8"))
        file = folder / "chat_template.jinja"
        template = file.read_text(encoding="utf-8") if file.is_file() else said.get("chat_template")
    except Exception:  # tokenizers raises no class of its own; a run says what is wrong with the files
        return None
    if isinstance(template, list):
        template = {each["name"]: each["template"] for each in template}
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return cast("PreTrainedTokenizerBase", _FileTokenizer(name, tokenizer, template, _special_tokens(said)))


def _special_tokens(said: Mapping[str, Any]) -> dict[str, str]:
    tokens = {name: said.get(name) for name in _NAMED}
    texts = {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


@dataclass
class _FileTokenizer:
    """The part of transformers' tokenizers that reading rows takes, under their names."""

    name_or_path: str
    backend_tokenizer: Tokenizer
    chat_template: Any
    special_tokens_map: Mapping[str, str]

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True, **_: object) -> dict[str, Any]:
        if isinstance(text, str):
            return {"input_ids": self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}
        encoded = self.backend_tokenizer.encode_batch(list(text), add_special_tokens=add_special_tokens)
        return {"input_ids": [each.ids for each in encoded]}

    def decode(self, ids: Sequence[int]) -> str:
        return self.backend_tokenizer.decode(list(ids), skip_special_tokens=False)

    def get_vocab(self) -> dict[str, int]:
        return self.backend_tokenizer.get_vocab()

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        return self.backend_tokenizer.get_added_tokens_decoder()

    @property
    def all_special_tokens(self) -> list[str]:
        return list(dict.fromkeys(self.special_tokens_map.values()))

    @property
    def all_special_ids(self) -> list[int]:
        ids = map(self.backend_tokenizer.token_to_id, self.all_special_tokens)
        return [each for each in ids if each is not None]

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens_map.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens_map.get("eos_token")

    @property
    def bos_token_id(self) -> int | None:
        return None if self.bos_token is None else self.backend_tokenizer.token_to_id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return None if self.eos_token is None else self.backend_tokenizer.token_to_id(self.eos_token)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        chat_template: str | None = None,
        tokenize: bool = False,
        **variables: Any,
    ) -> str:
        source = self.chat_template if chat_template is None else chat_template
        if isinstance(source, dict):
            source = source["tool_use" if tools is not None and "tool_use" in source else "default"]
        return _compiled(source).render(messages=messages, tools=tools, **{**self.special_tokens_map, **variables})


@cache
def _compiled(source: str) -> Any:
    """A template under the environment in which transformers compiles one."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The marks around what an assistant says, which write nothing."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def fail(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **keys: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": fail, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment.from_string(source)
