"""A model in this process, and a conversation with it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TextStreamer,
)

from roll.configs.sections.model import ModelArgs
from roll.errors import ConfigError
from roll.models.tokenizer import load_tokenizer
from roll.models.vision.files import vision_of
from roll.platforms.table import platform_here
from roll.utils.logging import say
from roll.utils.text import visible


@dataclass(frozen=True)
class ChatOptions:
    """`temperature` 0 takes the likeliest token; `seed` None: other answers each time."""

    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int | None

    def keys(self) -> dict[str, Any]:
        if self.temperature == 0:
            return {"max_new_tokens": self.max_new_tokens, "do_sample": False}
        sampling = {"temperature": self.temperature, "top_p": self.top_p, "top_k": 0}
        return {"max_new_tokens": self.max_new_tokens, "do_sample": True, **sampling}


class Shown(TextStreamer):
    """Puts an answer on the screen as it grows, and keeps it. Nothing in it steers the terminal."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        super().__init__(cast(Any, tokenizer), skip_prompt=True, skip_special_tokens=True)
        self.text = ""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.text += text
        sys.stdout.write(visible(text))
        sys.stdout.flush()


@dataclass
class ChatModel:
    """Chats with a model. With a chat template the turns are messages; without one the model continues the text so
    far."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    system: str | None
    wishes: ChatOptions
    turns: list[dict[str, str]] = field(default_factory=list)

    @staticmethod
    def load(path: str, dtype: str | None, system: str | None, wishes: ChatOptions) -> ChatModel:
        """Raises ConfigError for what cannot be loaded, or has no place for a system message."""
        tokenizer = load_tokenizer(path, "MODEL")
        if system is not None and not tokenizer.chat_template:
            raise ConfigError(f"--system: {path} has no chat template, so there is no place for it. Leave it out.")
        transformers.utils.logging.disable_progress_bar()
        number = {"bf16": torch.bfloat16, "fp32": torch.float32, None: "auto"}[dtype]
        try:
            sees = vision_of(ModelArgs(model_name_or_path=path)) is not None
            kind: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
            model = kind.from_pretrained(path, dtype=number)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"MODEL {path} cannot be loaded: {error}") from error
        cast(torch.nn.Module, model).to(torch.device(platform_here().device_type))
        if wishes.seed is not None:
            torch.manual_seed(wishes.seed)
        return ChatModel(model.eval(), tokenizer, system, wishes)

    @property
    def about(self) -> str:
        how = (
            "with its chat template"
            if self.tokenizer.chat_template
            else "which has no chat template: it continues the text"
        )
        return f"{self.model.num_parameters() / 1e6:,.1f} million parameters, {how}"

    def answer(self, text: str) -> str:
        """Shown as it comes. A turn that is stopped, or finds no room, is forgotten."""
        self.turns.append({"role": "user", "content": text})
        shown = Shown(self.tokenizer)
        try:
            ids = self._ids()
            room = self._longest - len(ids)
            if room < 1:
                say(f"(the conversation has {len(ids)} tokens and the model reads {self._longest}: /reset)")
                return ""
            keys = self.wishes.keys()
            keys["max_new_tokens"] = min(room, self.wishes.max_new_tokens)
            input_ids = torch.tensor([ids], device=self.model.device)
            with torch.inference_mode():
                cast(Any, self.model).generate(
                    input_ids,
                    attention_mask=torch.ones_like(input_ids),
                    streamer=shown,
                    pad_token_id=self.tokenizer.pad_token_id or self.tokenizer.eos_token_id,
                    **keys,
                )
            say("")
            self.turns.append({"role": "assistant", "content": shown.text})
            return shown.text
        finally:
            if self.turns[-1]["role"] == "user":
                self.turns.pop()

    @property
    def _longest(self) -> int:
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize

    def _ids(self) -> list[int]:
        if not self.tokenizer.chat_template:
            return self.tokenizer("\n".join(turn["content"] for turn in self.turns))["input_ids"]  # type: ignore[return-value]
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        text = str(
            self.tokenizer.apply_chat_template([*system, *self.turns], add_generation_prompt=True, tokenize=False)
        )
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[return-value]
