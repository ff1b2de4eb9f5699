"""A model in this process, and a conversation with it."""

from __future__ import annotations

import argparse
import sys
from typing import Any, cast

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedTokenizerBase, TextStreamer

from roll.configs.sections.model import ModelArgs
from roll.errors import ConfigError
from roll.models.tokenizer import load_tokenizer
from roll.models.vision.files import vision_of
from roll.platforms.table import platform_here
from roll.utils.logging import say
from roll.utils.text import visible


class Shown(TextStreamer):
    """Puts an answer on the screen as it grows, and keeps it. Nothing in it steers the terminal."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        super().__init__(cast(Any, tokenizer), skip_prompt=True, skip_special_tokens=True)
        self.text = ""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.text += text
        sys.stdout.write(visible(text))
        sys.stdout.flush()


class ChatModel:
    """Chats with a model by the options of `roll chat`. With a chat template the turns are messages; without one the
    model continues the text so far."""

    def __init__(self, path: str, options: argparse.Namespace):
        """Raises ConfigError for what cannot be loaded, or has no place for a system message."""
        self.turns: list[dict[str, str]] = []
        self._tokenizer = load_tokenizer(path, "MODEL")
        if options.system is not None and not self._tokenizer.chat_template:
            raise ConfigError(f"--system: {path} has no chat template, so there is no place for it. Leave it out.")
        self._system = [] if options.system is None else [{"role": "system", "content": options.system}]
        self._most = options.max_new_tokens
        sampling = {"temperature": options.temperature, "top_p": options.top_p, "top_k": 0}
        self._sampling = {"do_sample": True, **sampling} if options.temperature else {"do_sample": False}
        transformers.utils.logging.disable_progress_bar()
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32, None: "auto"}[options.dtype]
        try:
            sees = vision_of(ModelArgs(model_name_or_path=path)) is not None
            kind: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
            self._model: Any = kind.from_pretrained(path, dtype=dtype).eval()
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"MODEL {path} cannot be loaded: {error}") from error
        self._model.to(torch.device(platform_here().device_type))
        if options.seed is not None:
            torch.manual_seed(options.seed)

    @property
    def about(self) -> str:
        without = "which has no chat template: it continues the text"
        how = "with its chat template" if self._tokenizer.chat_template else without
        return f"{self._model.num_parameters() / 1e6:,.1f} million parameters, {how}"

    def answer(self, text: str) -> None:
        """Shown as it comes. A turn that is stopped, or finds no room, is forgotten."""
        self.turns.append({"role": "user", "content": text})
        shown, ids = Shown(self._tokenizer), self._ids()
        longest = getattr(self._model.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize
        try:
            if len(ids) >= longest:
                say(f"(the conversation has {len(ids)} tokens and the model reads {longest}: /reset)")
                return
            input_ids = torch.tensor([ids], device=self._model.device)
            with torch.inference_mode():
                self._model.generate(
                    input_ids,
                    attention_mask=torch.ones_like(input_ids),
                    streamer=shown,
                    pad_token_id=self._tokenizer.pad_token_id or self._tokenizer.eos_token_id,
                    max_new_tokens=min(longest - len(ids), self._most),
                    **self._sampling,
                )
            say("")
            self.turns.append({"role": "assistant", "content": shown.text})
        finally:
            if self.turns[-1]["role"] == "user":
                self.turns.pop()

    def _ids(self) -> list[int]:
        if not self._tokenizer.chat_template:
            return self._tokenizer("\n".join(turn["content"] for turn in self.turns))["input_ids"]  # type: ignore[return-value]
        turns = [*self._system, *self.turns]
        text = str(self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[return-value]
