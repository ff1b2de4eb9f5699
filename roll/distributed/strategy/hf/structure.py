"""Keeps answers to a structure, by xgrammar: which tokens fit next is a mask over the vocabulary."""

import threading
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from roll.errors import StrategyError, describe
from roll.utils.imports import is_installed, resolve

_WORD = 32  # bits of an entry of xgrammar's masks
_MOST_TOKENIZERS = 16  # sets of tokens that end an answer


class Follower:
    """Follows one answer through its structure. Where no token fits any more, as behind a schema that contains itself,
    the answer ends with one of `stops`."""

    def __init__(self, grammar: Any, stops: frozenset[int], vocab_size: int):
        make: Any = resolve("xgrammar:GrammarMatcher")
        allocate: Any = resolve("xgrammar:allocate_token_bitmask")
        self._matcher, self._stops, self._vocab_size = make(grammar), stops, vocab_size
        self._is_stuck = False
        self._mask = allocate(1, -(-vocab_size // _WORD) * _WORD)

    def banned(self) -> np.ndarray:
        """bool [V]: tokens that do not fit next."""
        self._matcher.fill_next_token_bitmask(self._mask, 0)
        bits = np.unpackbits(self._mask.numpy().view(np.uint8), bitorder="little")
        banned = bits[: self._vocab_size] == 0
        if banned.all():
            self._is_stuck = True
            banned[list(self._stops)] = False
        return banned

    def take(self, token: int) -> None:
        """Goes on behind a token that fits."""
        if not self._is_stuck and not self._matcher.accept_token(token):
            raise StrategyError(f"token {token} was sampled, which the structure of the response does not allow")


class Structures:
    """Reads structures, each once. For any thread."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self._compilers: dict[tuple[frozenset[int], int], Any] = {}
        self._lock = threading.Lock()

    def follow(self, structure: str, stops: frozenset[int], vocab_size: int) -> Follower:
        """Return what follows a new answer, which one of `stops` ends. Raises StrategyError for a structure that cannot
        be read."""
        if not is_installed("xgrammar"):
            raise StrategyError("a guided response (response_format, tool_choice) needs the package xgrammar")
        try:
            return Follower(self._compiler(stops, vocab_size).compile_structural_tag(structure), stops, vocab_size)
        except Exception as error:  # RuntimeError of its parser, and others
            raise StrategyError(f"the structure of the response cannot be followed: {describe(error)}") from None

    def _compiler(self, stops: frozenset[int], vocab_size: int) -> Any:
        key = (stops, vocab_size)
        with self._lock:
            if key not in self._compilers:
                read: Any = resolve("xgrammar:TokenizerInfo")
                compiler: Any = resolve("xgrammar:GrammarCompiler")
                info = read.from_huggingface(self._tokenizer, vocab_size=vocab_size, stop_token_ids=sorted(stops))
                while len(self._compilers) >= _MOST_TOKENIZERS:
                    del self._compilers[next(iter(self._compilers))]
                self._compilers[key] = compiler(info, max_threads=1)
            return self._compilers[key]
