"""Texts as operators compare them: normalised, and as sets of n-grams."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import xxhash

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+|[^\w\s]|_")


def normalised(text: str) -> str:
    """NFKC, case folded, white space in a row as one space. Example: "  The\\nﬁrst" == "the first"."""
    folded = unicodedata.normalize("NFKC", text).casefold()  # which takes letters such as U+0390 apart
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def words(text: str) -> list[str]:
    """Words of the normalised text: runs of letters and digits. Every other sign, and every Chinese, Japanese and
    Korean character, is a word of its own. Example: "What is 2+3?" == ["what", "is", "2", "+", "3", "?"]."""
    return _WORD.findall(normalised(text))


def ngrams(found: Sequence[str], n: int) -> frozenset[int]:
    """The different n-grams of these words, as 64-bit hashes (XXH3); all words together, where there are fewer than n.
    None of no words."""
    if not found:
        return frozenset()
    starts = range(max(1, len(found) - n + 1))
    grams = ("\0".join(found[at : at + n]).encode(errors="surrogatepass") for at in starts)
    return frozenset(map(xxhash.xxh3_64_intdigest, grams))
