"""Rows that say the same: the first of them stays."""

import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import xxhash

from roll.configs.sections.operators import ContaminationArgs, DeduplicateArgs, Part
from roll.features.operators.row import Context, OperatorRow, Verdict

# Texts as operators compare them: normalised, and as sets of n-grams.

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+|[^\w\s]|_")


def normalised(text: str) -> str:
    """NFKC, case folded, white space in a row as one space. Example: "  The\\nﬁrst" == "the first"."""
    folded = unicodedata.normalize("NFKC", text).casefold()  # which takes letters such as U+0390 apart
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def normalized_words(text: str) -> list[str]:
    """Words of the normalised text: runs of letters and digits. Every other sign, and every Chinese, Japanese and
    Korean character, is a word of its own. Example: "What is 2+3?" == ["what", "is", "2", "+", "3", "?"]."""
    return _WORD.findall(normalised(text))


def ngrams(tokens: Sequence[str], n: int, pictures: Sequence[str] = ()) -> frozenset[int]:
    """The different n-grams of these words, as 64-bit hashes (XXH3); all words together, where there are fewer than n.
    None of no words. Words about other `pictures` have other n-grams."""
    if not tokens:
        return frozenset()
    starts = range(max(1, len(tokens) - n + 1))
    grams = ("\0".join([*tokens[at : at + n], *pictures]).encode(errors="surrogatepass") for at in starts)
    return frozenset(map(xxhash.xxh3_64_intdigest, grams))


def _grams(row: OperatorRow, part: Part, n: int) -> frozenset[int]:
    return ngrams(normalized_words(row.part(part)), n, row.pictures(part))


SAME = "the same as an earlier row"


def deduplicate(rows: Sequence[OperatorRow], args: DeduplicateArgs, context: Context) -> list[Verdict]:
    """Marks rows that say the same as one before them."""
    del context
    seen: set[tuple[str, ...]] = set()
    verdicts: list[Verdict] = []
    for row in rows:
        texts = tuple(map(normalised, row.parts(args.part)))  # one by one: where a prompt ends is a difference
        texts += row.pictures(args.part)
        verdicts.append(SAME if texts in seen else None)
        seen.add(texts)
    return verdicts


# Rows that share words with what the run is evaluated on.


def contamination(rows: Sequence[OperatorRow], args: ContaminationArgs, context: Context) -> list[Verdict]:
    """A row goes that has at least `share` of the n-grams of an evaluation's prompt, and one at least. Texts with fewer
    words than an n-gram are compared as a whole."""
    sizes: list[int] = []
    names: list[str] = []
    having: dict[int, list[int]] = defaultdict(list)  # the evaluation's rows with an n-gram
    for name, prompts in context.evaluation().items():
        for texts in prompts:
            grams = ngrams(normalized_words(texts.prompt), args.ngram, texts.pictures)
            for element in grams:
                having[element].append(len(sizes))
            sizes.append(len(grams))
            names.append(name)
    share = Fraction(str(args.share))

    def verdict(row: OperatorRow) -> Verdict:
        row_grams = _grams(row, args.part, args.ngram)
        shared = Counter(at for element in row_grams for at in having.get(element, ()))
        hit = next((at for at, count in sorted(shared.items()) if count >= share * sizes[at]), None)
        return None if hit is None else f"shares {args.ngram} words with {names[hit]}"

    return [verdict(row) for row in rows]


# A policy that does not see its task.


def other_prompts(rows: Sequence[OperatorRow], column: str = "prompt", seed: int = 0) -> list[dict[str, Any]]:
    """The prompt of another row for each row: what is earned then, nobody has to read the task for (docs/health.md)."""
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    following = dict(zip(order, [*order[1:], *order[:1]], strict=True))
    return [{column: rows[following[place]].value(column)} for place in range(len(rows))]
