"""Tokens that end an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_MODEL = "roll_model"  # an attribute of a tokenizer, which is not saved with it


def asks(tokenizer: PreTrainedTokenizerBase, model: str) -> None:
    """Says which model a tokenizer from another folder is used with: its files say where engines stop."""
    vars(tokenizer)[_MODEL] = model


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of special tokens: those with a name (eos_token and the like), and those that only the vocabulary
    marks as special."""
    marked = (place for place, token in tokenizer.added_tokens_decoder.items() if token.special)
    return frozenset((*tokenizer.all_special_ids, *marked))


def answer_ends(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Tokens at which engines stop: the tokenizer's eos_token, and eos_token_id of the model's generation_config.json,
    or of its config.json where that file says none. The model is in the tokenizer's folder unless `asks` says another.

    Example of GLM-4.5: <|endoftext|>, <|user|>, <|observation|>.
    """
    eos_ids = _eos_of(_json(tokenizer, "generation_config.json"))
    eos_ids = eos_ids or _eos_of(_json(tokenizer, "config.json"))
    return frozenset((*_ids(tokenizer.eos_token_id), *eos_ids))


class Ends:
    """Tokens with which a tokenizer ends answers. `tokens`: those at which engines stop; `special`: all that are no
    text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self.special = special_ids(tokenizer)
        self.tokens = answer_ends(tokenizer)

    def of_answer(self, ids: Sequence[int]) -> int:
        """How many of an answer's tokens the model writes: up to the first end among the special tokens and the white
        space that close it, as an engine stops there. Without one, up to the last special token; all of them where the
        text goes on behind it, since a special token before that is one that the answer names.

        Example: `yo <|end|> \\n <|endoftext|>`, of which both marks are ends: 2.
        """
        start = len(ids)
        while start and self._closes(ids[start - 1]):
            start -= 1
        closing = range(start, len(ids))
        end = next((place for place in closing if ids[place] in self.tokens), None)
        if end is None:
            end = next((place for place in reversed(closing) if ids[place] in self.special), len(ids) - 1)
        return end + 1

    def is_ended(self, ids: Sequence[int]) -> bool:
        """Whether an engine stops at the end of this answer."""
        end = self.of_answer(ids)
        return end > 0 and ids[end - 1] in self.tokens

    def problem(self, ids: Sequence[int]) -> str:
        """Why an answer that nothing ends is not learnt, and the way out."""
        learnt = list(ids[: self.of_answer(ids)])
        shown = ", ".join(repr(self._tokenizer.decode([token])) for token in sorted(self.tokens)) or "none"
        mends = "Use a template that writes one of them behind the assistant's messages (native, of a chat model)"
        if learnt and learnt[-1] in self.special:
            model = vars(self._tokenizer).get(_MODEL) or self._tokenizer.name_or_path or "the model"
            mends = (
                f"If {self._tokenizer.decode(learnt[-1:])!r} ends a turn, add {learnt[-1]} to eos_token_id in the "
                f"generation_config.json of {model}, or name a tokenizer with "
                "that eos_token (model_args.tokenizer_path)"
            )
        return (
            f"a response ends with {self._tokenizer.decode(learnt[-8:])!r}, where no engine stops, so the model would "
            "learn to continue forever. Responses must end with the tokenizer's eos_token, or an eos_token_id of "
            f"generation_config.json: here {shown}. {mends}"
        )

    def _closes(self, token: int) -> bool:
        return token in self.special or not str(self._tokenizer.decode([token])).strip()


def _eos_of(config: Any) -> list[int]:
    if not isinstance(config, dict):
        return []
    inner = config.get("text_config")
    return _ids(config.get("eos_token_id")) or _ids(inner.get("eos_token_id") if isinstance(inner, dict) else None)


def _ids(value: Any) -> list[int]:
    return [token for token in (value if isinstance(value, list) else [value]) if type(token) is int]


def _json(tokenizer: PreTrainedTokenizerBase, file: str) -> Any:
    """Read a JSON file of the model; None if there is none."""
    from transformers.utils.hub import cached_file

    folder = vars(tokenizer).get(_MODEL) or tokenizer.name_or_path
    if not folder:
        return None
    try:
        path = cached_file(
            folder,
            file,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if path is None:
            return None
        with open(path, encoding="utf-8") as text:
            return json.load(text)
    except (OSError, ValueError):
        return None
