"""Lengths in tokens: rows are cut to the most that a run takes, and a prompt of megabytes is found too long without the
tokenizer, which would work on it for minutes."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from roll.configs.sections.data import Truncation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

_KEEPING = {"ByteLevel", "Digits", "Metaspace"}  # pre-tokenizers that lose no character


class TokenBound:
    """Lower bounds for one tokenizer: the length of a text by that of the longest token.

    It is known of byte pair encodings that lose nothing on the way (GPT-2, Qwen, Llama); of others the bound is 0.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        spec = json.loads(backend.to_str()) if backend is not None else {}
        self._composes = any(step["type"] == "NFC" for step in _steps(spec.get("normalizer"), "normalizers"))
        self._counts_bytes = any(step["type"] == "ByteLevel" for step in _steps(spec.get("pre_tokenizer"), _PARTS))
        self._longest = self._longest_token(spec) if _loses_nothing(spec, self._counts_bytes) else 0

    def least(self, text: str) -> int:
        """No encoding of `text` has fewer tokens."""
        if not self._longest:
            return 0
        text = unicodedata.normalize("NFC", text) if self._composes else text
        size = len(text.encode("utf-8")) if self._counts_bytes else len(text)
        return -(-size // self._longest)

    def _longest_token(self, spec: Mapping[str, Any]) -> int:
        """Length of the longest token: in bytes if each character of the vocabulary stands for a byte, else in
        characters."""
        added = (token["content"] for token in spec["added_tokens"])
        sizes = [len(text.encode("utf-8")) if self._counts_bytes else len(text) for text in added]
        return max([*sizes, *(len(token) for token in spec["model"]["vocab"])])


_PARTS = "pretokenizers"


def _loses_nothing(spec: Mapping[str, Any], counts_bytes: bool) -> bool:
    """True if every character of a text ends in some token, and a token stands for no more than it spells."""
    model = spec.get("model", {})
    if model.get("type") != "BPE" or any(token["lstrip"] or token["rstrip"] for token in spec["added_tokens"]):
        return False
    vocabulary = model["vocab"]
    if counts_bytes:
        from tokenizers.pre_tokenizers import ByteLevel

        spells_all = all(letter in vocabulary for letter in ByteLevel.alphabet())
    else:
        spells_all = bool(model.get("byte_fallback")) and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    normal = all(_grows(step) for step in _steps(spec.get("normalizer"), "normalizers"))
    kept = all(
        step["type"] in _KEEPING or (step["type"] == "Split" and step["behavior"] != "Removed")
        for step in _steps(spec.get("pre_tokenizer"), _PARTS)
    )
    return spells_all and normal and kept


def _grows(step: Mapping[str, Any]) -> bool:
    """True of a normalizer that makes no text shorter, but for NFC, which is done before the text is measured."""
    if step["type"] == "Replace":
        old, new = step["pattern"].get("String"), step["content"]
        return old is not None and len(new) >= len(old) and len(new.encode()) >= len(old.encode())
    return step["type"] in ("NFC", "Prepend")


def _steps(spec: Mapping[str, Any] | None, parts: str) -> Iterator[Mapping[str, Any]]:
    if spec is None:
        return
    if spec["type"] == "Sequence":
        for part in spec[parts]:
            yield from _steps(part, parts)
    else:
        yield spec


def shortened(items: Sequence[T], most: int, how: Truncation) -> list[T]:
    """Cuts a sequence to `most` items: without its beginning (left), its middle, or its end (any other).

    Example: of abcdefg and 5 middle leaves abefg, as verl cuts.
    """
    excess = max(0, len(items) - most)
    begin = {"left": 0, "middle": most // 2}.get(how, most)
    return [*items[:begin], *items[begin + excess :]]
