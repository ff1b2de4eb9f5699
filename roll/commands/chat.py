"""`roll chat`: what a model says, at the terminal or through a pipe."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from roll.errors import ConfigError
from roll.models.hub import hub_problems
from roll.run.start.gguf import gguf_folder
from roll.utils.files import is_hub_id
from roll.utils.logging import say

if TYPE_CHECKING:
    from roll.commands.chat_model import ChatModel

_TEXT = """MODEL is a directory with config.json and weights, a GGUF file, a hub id, a checkpoint of a run
(.../checkpoints/step_000050), or the output_dir of a run: then its newest checkpoint answers. Lines are read from the
keyboard, or from a pipe. /reset starts a new conversation, /exit or Ctrl-D ends the chat, Ctrl-C stops a response.
docs/serving.md."""


def run(argv: Sequence[str]) -> int:
    """Raises ConfigError for words that are no call, and for what is no model."""
    options = parser().parse_args(argv)
    if options.max_new_tokens < 1 or options.temperature < 0 or not 0 < options.top_p <= 1:
        raise ConfigError("--max_new_tokens is at least 1, --temperature at least 0, --top_p above 0 and at most 1.")
    from roll.run.saving.checkpoint import saved_model

    path = saved_model(gguf_folder(options.model), "MODEL")
    if is_hub_id(path) and (wrong := hub_problems({path: "model"}, loads=True)):
        raise ConfigError(f"MODEL: {wrong[path]}")
    from roll.commands.chat_model import ChatModel

    talker = ChatModel(path, options)
    say(f"{path}, {talker.about}. /reset starts a new conversation, /exit ends the chat.")
    try:
        _talk(talker)
    except EOFError:
        say("")
    return 0


def _talk(talker: ChatModel) -> None:
    typed = iter(partial(input, "> "), None) if sys.stdin.isatty() else sys.stdin
    for line in typed:
        match line.strip():
            case "":
                continue
            case "/exit":
                return
            case "/reset":
                talker.turns.clear()
                say("(new conversation)")
            case text:
                try:
                    talker.answer(text)
                except KeyboardInterrupt:
                    say("\n(stopped)")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="roll chat", description=_TEXT, allow_abbrev=False)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--system", help="system message, before the conversation")
    parser.add_argument("--max_new_tokens", type=int, default=512, help="longest response in tokens; default 512")
    parser.add_argument(
        "--temperature", type=float, default=0.7, help="default 0.7; 0 always takes the most likely token"
    )
    parser.add_argument("--top_p", type=float, default=1.0, help="default 1.0")
    parser.add_argument("--seed", type=int, help="seed of the sampling, for repeatable responses")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), help="number format of the weights; default: as saved")
    return parser
