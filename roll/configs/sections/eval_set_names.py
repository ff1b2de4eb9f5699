"""What evaluation sets of any kind of run may be called, and which pass@k they can have."""

import re
from collections.abc import Collection, Iterator, Sequence

from roll.configs.problems import Problem
from roll.utils.text import show

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MEASURED = ("reward_mean", "response_length_mean", "failed_fraction")  # val/<one of these>/<tag> is taken


def purpose_of(name: str) -> str:
    """What the random streams of a set hang on, beside the run's seed: neither the step nor the other sets."""
    return f"validation/{name}" if name else "validation"


def name_problems(name: str, taken: Collection[str] = ()) -> Iterator[Problem]:
    """`taken`: other words behind val/."""
    words = (*_MEASURED, *taken)
    if not _NAME.fullmatch(name) or name in words or name.startswith("pass_at_"):
        yield Problem(
            f"eval_sets: {show(name)} cannot be part of metric names such as val/NAME/reward_mean. Choose letters, "
            f"digits, _, . and -, and none of {', '.join(words)}.",
            (f"eval_sets.{name}",),
        )


def pass_at_problems(name: str, pass_at: Sequence[int], num_answers: int, key: str) -> Iterator[Problem]:
    """`key`: of the set, which says how many answers there are to each prompt."""
    at = f"eval_sets.{name}"
    wrong = [k for k in pass_at if not 1 <= k <= num_answers]
    if wrong:
        yield Problem(
            f"{at}.pass_at: {wrong[0]} responses cannot be drawn from {num_answers}. Raise {at}.{key}, or name numbers "
            f"from 1 to {num_answers}.",
            (f"{at}.pass_at", f"{at}.{key}"),
        )
