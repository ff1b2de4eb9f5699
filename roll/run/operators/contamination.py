"""Rows that share words with what the run is evaluated on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction

from roll.configs.sections.operators import ContaminationArgs
from roll.run.operators.operators_row import Context, OperatorRow, Verdict
from roll.run.operators.words import ngrams, words


def contamination(rows: Sequence[OperatorRow], args: ContaminationArgs, context: Context) -> list[Verdict]:
    """A row goes that has at least `share` of the n-grams of an evaluation's prompt, and one at least. Texts with fewer
    words than an n-gram are compared as a whole."""
    sizes: list[int] = []
    names: list[str] = []
    having: dict[int, list[int]] = defaultdict(list)  # the evaluation's rows with an n-gram
    for name, prompts in context.evaluation().items():
        for prompt in prompts:
            found = ngrams(words(prompt), args.ngram)
            for element in found:
                having[element].append(len(sizes))
            sizes.append(len(found))
            names.append(name)
    share = Fraction(str(args.share))

    def verdict(row: OperatorRow) -> Verdict:
        own = ngrams(words(row.part(args.part)), args.ngram)
        shared = Counter(at for element in own for at in having.get(element, ()))
        hit = next((at for at, count in sorted(shared.items()) if count >= share * sizes[at]), None)
        return None if hit is None else f"shares {args.ngram} words with {names[hit]}"

    return [verdict(row) for row in rows]
