"""Rows by a number: how long they are, and how often they are solved."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from roll.configs.sections.operators import LengthArgs, PassRateArgs
from roll.errors import ConfigError, describe
from roll.features.operators.row import Context, OperatorRow, Verdict
from roll.types.group_codec import read_groups
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
    return [_within(row, rate, args, source, context) for row, rate in zip(rows, rates, strict=True)]


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


def _within(row: OperatorRow, rate: Any, args: PassRateArgs, source: str, context: Context) -> Verdict:
    if isinstance(rate, str):  # as CSV has them
        rate = _number(rate)
    if not isinstance(rate, int | float) or rate != rate:  # true is 1, as of KTO's labels
        if args.missing == "error":
            raise ConfigError(
                f"{context.key}: {row.where} has no pass rate: {source} gives {show(rate)}. Set args.missing: keep or "
                "drop, or correct it"
            )
        return None if args.missing == "keep" else "no pass rate"
    if rate < args.min:
        return f"pass rate below {args.min:g}"
    return f"pass rate above {args.max:g}" if rate > args.max else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
