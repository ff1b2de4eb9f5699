"""Rows by a number: how long they are, how often they are solved, how good something finds them."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

from roll.configs.sections.operators import LengthArgs, PassRateArgs, QualityArgs
from roll.errors import ConfigError, describe
from roll.features.operators.row import Context, OperatorRow, Verdict
from roll.types.group_codec import read_groups
from roll.utils.imports import line_of, resolve
from roll.utils.text import show


def length(rows: Sequence[OperatorRow], args: LengthArgs, context: Context) -> list[Verdict]:
    """Filters rows by length. With `both`, prompt and response are counted together. Each of several responses has to
    fit."""
    texts = [_counted_texts(row, args) for row in rows]
    flat = [text for some in texts for text in some]
    sizes = iter(context.count_tokens(flat) if args.unit == "tokens" else map(len, flat))
    verdicts: list[Verdict] = []
    for some in texts:
        counts = [sum(next(sizes) for _ in range(_pieces(args))) for _ in range(len(some) // _pieces(args))]
        if max(counts, default=0) > (math.inf if args.max is None else args.max):
            verdicts.append(f"more than {args.max} {args.unit}")
        else:
            verdicts.append(f"fewer than {args.min} {args.unit}" if min(counts, default=0) < args.min else None)
    return verdicts


def _counted_texts(row: OperatorRow, args: LengthArgs) -> list[str]:
    if args.part == "prompt":
        return [row.prompt]
    if args.part == "response":
        return [*row.responses]
    return [text for response in row.responses for text in (row.prompt, response)] or [row.prompt, ""]


def _pieces(args: LengthArgs) -> int:
    """Texts that are counted together."""
    return 2 if args.part == "both" else 1


def pass_rate(rows: Sequence[OperatorRow], args: PassRateArgs, context: Context) -> list[Verdict]:
    if args.rollouts is None:
        rates, source = [row.value(args.column) for row in rows], f"column {args.column!r}"
    else:
        solved_rates = rates_of(Path(args.rollouts), args.solved_at, context.key)
        rates, source = [solved_rates.get(row.id) for row in rows], f"{args.rollouts}"
    return list(_within(rows, rates, args.min, args.max, args.missing, ("pass rate", source), context))


def rates_of(place: Path, solved_at: float, key: str) -> Mapping[str, float]:
    """The share of the attempts at a task that solved it, by the id of the task, over all recorded steps; without those
    that failed, and tasks of which all did. Raises ConfigError where no records can be read."""
    files = sorted(place.glob("step_*.npz")) if place.is_dir() else [place]
    solved: dict[str, list[bool]] = defaultdict(list)
    try:
        for file in files:
            for group in read_groups(file):
                rewards = {row.index: row.reward for row in group.trajectories if row.failure is None}
                solved[group.task_id] += [reward >= solved_at for reward in rewards.values()]
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise ConfigError(f"{key}.args.rollouts: {place} cannot be read: {describe(error)}. Dump it again") from error
    if not solved:
        raise ConfigError(
            f"{key}.args.rollouts: {place} holds no rollouts (step_*.npz). A run with rollout_mock.mode: dump "
            "writes them"
        )
    return {task: sum(outcomes) / len(outcomes) for task, outcomes in solved.items() if outcomes}


def quality(rows: Sequence[OperatorRow], args: QualityArgs, context: Context) -> list[Verdict]:
    """Filters rows by quality. With a scorer, its scores are written to the column of the rows that stay."""
    if args.scorer is None:
        scores = [row.value(args.column) for row in rows]
        source = f"column {args.column!r}"
    else:
        scores, source = list(_scored(rows, args, args.scorer, context.key)), args.scorer
    low, high = -math.inf if args.min is None else args.min, math.inf if args.max is None else args.max
    verdicts = _within(rows, scores, low, high, args.missing, ("quality", source), context)
    if args.scorer is None:
        return list(verdicts)
    known = [None if score is None or score != score else score for score in scores]
    return [{args.column: score} if said is None else said for said, score in zip(verdicts, known, strict=True)]


def _scored(rows: Sequence[OperatorRow], args: QualityArgs, scorer: str, key: str) -> Iterator[Any]:
    try:
        score = cast("Callable[..., Sequence[Any]]", resolve(scorer))
    except ImportError as error:
        raise ConfigError(f"{key}.args.scorer: {error}") from error
    for start in range(0, len(rows), args.batch_size):
        batch = list(rows[start : start + args.batch_size])
        try:
            scores = [None if each is None else float(each) for each in score(batch, **args.scorer_args)]
        except (Exception, SystemExit) as error:
            text = f"{scorer} raised {describe(error)}{line_of(error, __file__)}"
            raise ConfigError(f"{key}.args.scorer: {text}, for {len(batch)} rows from {batch[0].where} on.") from error
        if len(scores) != len(batch):
            raise ConfigError(f"{key}.args.scorer: {scorer} gave {len(scores)} numbers for {len(batch)} rows.")
        yield from scores


def _within(
    rows: Sequence[OperatorRow],
    numbers: Sequence[Any],
    low: float,
    high: float,
    missing: str,
    names: tuple[str, str],
    context: Context,
) -> Iterator[Verdict]:
    """`names`: what the number is, and where it comes from."""
    what, source = names
    for row, number in zip(rows, numbers, strict=True):
        if isinstance(number, str):  # as CSV has them
            number = _number(number)
        if not isinstance(number, int | float) or number != number:  # true is 1, as of KTO's labels
            if missing == "error":
                raise ConfigError(
                    f"{context.key}: {row.where} has no {what}: {source} gives {show(number)}. Set args.missing: keep "
                    "or drop, or correct it"
                )
            yield None if missing == "keep" else f"no {what}"
        elif number < low:
            yield f"{what} below {low:g}"
        else:
            yield f"{what} above {high:g}" if number > high else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
