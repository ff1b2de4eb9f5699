"""Penalties on the form of an answer, to be parts of `reward_manager_config`: 0 at best, below it otherwise."""

from typing import Literal

from roll.rewards.base import RewardInput, requires
from roll.utils.thinking import without_marks


@requires()
class Overlong:
    """DAPO's soft punishment of long answers (Yu et al. 2025, arXiv:2503.14476, equation 13): 0 up to
    max_tokens - cache_tokens tokens, from there a straight line down to -1 at max_tokens, -1 beyond.

    Example: max_tokens 100, cache_tokens 20: 80 tokens 0, 90 tokens -.5, 100 and more -1.
    """

    def __init__(self, max_tokens: int, cache_tokens: int):
        if not 0 < cache_tokens <= max_tokens:
            raise ValueError(f"cache_tokens: {cache_tokens} must be from 1 to max_tokens, {max_tokens}")
        self._max_tokens = max_tokens
        self._cache_tokens = cache_tokens

    def __call__(self, sample: RewardInput) -> float:
        room = self._max_tokens - sample.num_response_tokens
        return min(0.0, max(-1.0, (room - self._cache_tokens) / self._cache_tokens))


@requires()
class Repetition:
    """`max_penalty` times the share of n-grams that the answer has had before (Yeo et al. 2025, arXiv:2502.03373):
    1 - different n-grams / n-grams, over words as white space divides them, or over characters for languages that write
    none, in lower case. An answer of fewer than `ngram_size` units gets 0.

    Example: of the 4 pairs of words in "a b a b a" 2 were there before: ngram_size 2 and max_penalty -1 give -.5.
    """

    def __init__(self, ngram_size: int = 3, max_penalty: float = -0.5, by: Literal["words", "characters"] = "words"):
        if ngram_size < 1:
            raise ValueError(f"ngram_size: {ngram_size} must be at least 1")
        if max_penalty > 0:
            raise ValueError(f"max_penalty: {max_penalty} must not be above 0")
        if by not in ("words", "characters"):
            raise ValueError(f"by: {by!r} must be words or characters")
        self._size = ngram_size
        self._max_penalty = float(max_penalty)
        self._by_words = by == "words"

    def __call__(self, sample: RewardInput) -> float:
        words = without_marks(sample.response_text).lower().split()
        units = words if self._by_words else list("".join(words))
        num_ngrams = len(units) - self._size + 1
        if num_ngrams < 1:
            return 0.0
        different = {tuple(units[start : start + self._size]) for start in range(num_ngrams)}
        return self._max_penalty * (1 - len(different) / num_ngrams)


@requires()
class ShortResponse:
    """ROLL's penalty on short answers: -.5 up to `min_tokens` tokens, from there a straight line up to 0 at
    `max_tokens`. `response_length_penalty_coef` is the weight of this part.

    Example: with 100 and 400, 100 tokens give -.5, 250 give -.25, 400 and more 0.
    """

    def __init__(self, min_tokens: int = 100, max_tokens: int = 400):
        if not 0 <= min_tokens < max_tokens:
            raise ValueError(f"min_tokens: {min_tokens} must be from 0 to below max_tokens, {max_tokens}")
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens

    def __call__(self, sample: RewardInput) -> float:
        missing = (self._max_tokens - sample.num_response_tokens) / (self._max_tokens - self._min_tokens)
        return -0.5 * min(1.0, max(0.0, missing))


@requires()
class LongWord:
    """-1 if something without white space in the answer is longer than `max_chars` characters, 0 if not."""

    def __init__(self, max_chars: int = 100):
        if max_chars < 1:
            raise ValueError(f"max_chars: {max_chars} must be at least 1")
        self._max_chars = max_chars

    def __call__(self, sample: RewardInput) -> float:
        return -float(any(len(word) > self._max_chars for word in without_marks(sample.response_text).split()))
