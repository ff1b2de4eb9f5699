"""Finding the token that completes a stop string, without decoding every answer at every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from roll.types.rollout import Generation, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what an incomplete UTF-8 sequence decodes to
_MAX_TOKENS_PER_CHARACTER = 4  # a token holds at least one byte
_EXTRA_TOKENS = 8


class StopStrings:
    """Detects stop strings across token boundaries. The token that completes one is the last that is kept.

    Only a token whose own text holds the last character of a stop string can complete it, so all others are ruled out
    by one table lookup; the rest decode a short tail. Special tokens count as their text ("<|im_end|>" may be a stop
    string).
    """

    def __init__(self, decode: Callable[[list[int]], str], num_tokens: int):
        """`decode` turns token ids 0 .. num_tokens - 1 into text, special tokens included."""
        self._decode = decode
        self._num_tokens = num_tokens
        self._texts: list[str] | None = None
        self._candidates: dict[tuple[str, ...], np.ndarray] = {}

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase) -> StopStrings:
        def decode(ids: list[int]) -> str:
            return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

        return StopStrings(decode, len(tokenizer))

    def candidates(self, strings: tuple[str, ...], vocab_size: int) -> np.ndarray:
        """bool [vocab_size]: the tokens that can complete one of the strings."""
        table = self._candidates.get(strings)
        if table is None:
            if self._texts is None:
                self._texts = [self._decode([token]) for token in range(self._num_tokens)]
            ends = {string[-1] for string in strings}
            # Some tokenizers drop a token's blanks at the start of a text: then its own text does not show them.
            any_token = any(end.isspace() for end in ends)
            table = np.zeros(vocab_size, bool)
            for token, text in enumerate(self._texts[:vocab_size]):
                table[token] = any_token or _REPLACEMENT in text or not ends.isdisjoint(text)
            self._candidates[strings] = table
        return table

    def completed_after(self, strings: tuple[str, ...], before: np.ndarray, after: np.ndarray) -> int | None:
        """How many tokens of `after` complete one of the strings that begins in `before`; None if none does."""
        longest = max(map(len, strings))
        for count in range(1, len(after) + 1):
            if self.completes(strings, np.concatenate([before, after[:count]])):
                return count
            if len(self._decode(after[:count].tolist()).rstrip(_REPLACEMENT)) >= longest:
                return None
        return None

    def completes(self, strings: tuple[str, ...], token_ids: np.ndarray) -> bool:
        """True if the last of these tokens completes one of the strings (an earlier occurrence does not count)."""
        window = _MAX_TOKENS_PER_CHARACTER * max(map(len, strings)) + _EXTRA_TOKENS
        tail = token_ids[-window:].tolist()
        return _begin(strings, self._decode(tail[:-1]), self._decode(tail)) is not None


def answer_texts(
    decode: Callable[[Sequence[np.ndarray]], list[str]], answers: Sequence[Generation], sampling: SamplingParams
) -> list[str]:
    """Return the texts of the answers: without the stop string that ended one, and without the rest of its last token,
    unless `sampling.include_stop_string`. Their tokens stay those that were sampled, whatever the engine.

    Example: stop string "</sql>", answer "select 1</sql>\\n" -> "select 1".
    """
    texts = decode([answer.token_ids for answer in answers])
    if sampling.include_stop_string or not sampling.stop_strings:
        return texts
    before = decode([answer.token_ids[:-1] for answer in answers])
    return [
        text[: _begin(sampling.stop_strings, start, text)] if answer.finish_reason == "stop" else text
        for answer, start, text in zip(answers, before, texts, strict=True)
    ]


def _begin(strings: Sequence[str], before: str, text: str) -> int | None:
    """Position in `text` of the first stop string that its last token completes; None if there is none. `before` is the
    text without that token."""
    before = before.rstrip(_REPLACEMENT)
    places = [text.find(string, max(0, len(before) - len(string) + 1)) for string in strings]
    return min((place for place in places if place >= 0), default=None)
