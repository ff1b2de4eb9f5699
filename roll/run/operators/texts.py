"""Rows that say the same: the first of them stays."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction

from roll.configs.sections.operators import DeduplicateArgs
from roll.run.operators.operators_row import Context, OperatorRow, Verdict
from roll.run.operators.words import ngrams, normalised, words

SAME, NEAR = "the same as an earlier row", "near duplicate of an earlier row"


def deduplicate(rows: Sequence[OperatorRow], args: DeduplicateArgs, context: Context) -> list[Verdict]:
    """Rows are looked at in their order, and compared with those that stay."""
    del context
    seen: set[tuple[str, ...]] = set()
    verdicts: list[Verdict] = []
    for row in rows:
        texts = tuple(map(normalised, row.parts(args.part)))  # one by one: where a prompt ends is a difference
        verdicts.append(SAME if texts in seen else None)
        seen.add(texts)
    if args.similarity == 1:
        return verdicts
    left = [place for place, verdict in enumerate(verdicts) if verdict is None]
    sets = [ngrams(words(rows[place].part(args.part)), args.ngram) for place in left]
    for place, is_near in zip(left, near(sets, Fraction(str(args.similarity))), strict=True):
        if is_near:
            verdicts[place] = NEAR
    return verdicts


def near(sets: Sequence[frozenset[int]], similarity: Fraction) -> Iterator[bool]:
    """Marks near duplicates: for each set in turn, whether its Jaccard similarity (shared / all) to an earlier set that
    was kept is at least `similarity`. The result is exact: a pair that is not compared cannot reach it. An empty set is
    never a duplicate.

    Two sets that reach it share at least similarity x the size of the larger one. So, with the elements of both in one
    order, they share one among the first size - similarity x size + 1 of each (prefix filtering: Chaudhuri, Ganti and
    Kaushik, A Primitive Operator for Similarity Joins in Data Cleaning, ICDE 2006); rare elements come first.
    """
    count = Counter(element for each in sets for element in each)
    having: dict[int, list[frozenset[int]]] = defaultdict(list)  # those that are kept, by the first of their elements
    for each in sets:
        first = sorted(each, key=lambda element: (count[element], element))
        first = first[: len(first) - math.ceil(similarity * len(first)) + 1]
        found = any(_reach(each, other, similarity) for element in first for other in having.get(element, ()))
        yield found
        if not found:
            for element in first:
                having[element].append(each)


def _reach(one: frozenset[int], other: frozenset[int], similarity: Fraction) -> bool:
    least, most = sorted((len(one), len(other)))
    if least < similarity * most:
        return False
    shared = len(one & other)
    return shared >= similarity * (least + most - shared)
