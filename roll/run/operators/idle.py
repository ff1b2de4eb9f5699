"""Arguments of operators that would be ignored, and operators that would keep every row."""

from collections.abc import Iterator

from roll.configs.base import Settings
from roll.configs.sections.operators import DeduplicateArgs, LengthArgs, PassRateArgs, QualityArgs


def idle_arguments(args: Settings) -> Iterator[str]:
    """What is wrong, behind the path of the operator's `args`."""
    given = args.model_fields_set
    match args:
        case DeduplicateArgs(similarity=1) if "ngram" in given:
            yield (
                ".ngram does nothing with similarity: 1, which compares whole texts. Set similarity below 1, or "
                "remove it."
            )
        case LengthArgs(min=0, max=None):
            yield ": without min and max every row stays. Give one, or take the operator out."
        case PassRateArgs():
            yield from _of_pass_rate(args)
        case QualityArgs():
            yield from _of_quality(args)


def _of_pass_rate(args: PassRateArgs) -> Iterator[str]:
    given = args.model_fields_set
    if args.rollouts is not None and "column" in given:
        yield ".column does nothing with rollouts, which give the rates. Remove one of the two."
    if args.rollouts is None and "solved_at" in given:
        yield ".solved_at does nothing without rollouts: a column holds the rates themselves. Remove it."
    if args.min == 0 and args.max == 1 and args.missing != "drop":
        yield ": without min and max every row stays. Give one, or take the operator out."


def _of_quality(args: QualityArgs) -> Iterator[str]:
    """A scorer without limits is of use: rows have its numbers."""
    if args.scorer is None:
        for name in sorted({"scorer_args", "batch_size"} & args.model_fields_set):
            yield f".{name} does nothing without a scorer. Set scorer, or remove it."
        if args.min is None and args.max is None and args.missing != "drop":
            yield ": without min and max every row stays. Give one, or take the operator out."
