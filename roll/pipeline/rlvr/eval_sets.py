"""`eval_sets`: several validations, each with its own rows, sampling and name."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from roll.configs.base import Settings, setting
from roll.configs.data import DataArgs, Numbers
from roll.configs.problems import Problem
from roll.configs.rollout import GeneratingArgs
from roll.utils.text import show

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MEASURED = ("reward_mean", "response_length_mean", "failed_fraction")  # val/<one of these>/<tag> is taken


class EvalSetConfig(Settings):
    """One of `eval_sets`: rows that are validated under a name of their own."""

    data_args: DataArgs = setting({}, "Its rows, as in validation.")
    generating_args: GeneratingArgs = setting(
        {}, "How it is sampled; num_return_sequences is the number of answers to each prompt. Default: greedy."
    )
    pass_at: Numbers = setting(
        (),
        "The k of val/NAME/pass_at_k. Default: 2, 4, 8 ... up to the number of answers; val/NAME/reward_mean is "
        "the mean over all answers.",
    )

    @property
    def num_answers(self) -> int:
        return self.generating_args.num_return_sequences or 1


@dataclass(frozen=True)
class Validated:
    """What is validated: `validation` (without a name), or one of `eval_sets`. `at`: its YAML path."""

    name: str
    at: str
    data_args: DataArgs
    generating_args: GeneratingArgs
    pass_at: tuple[int, ...] = ()

    @property
    def purpose(self) -> str:
        """What its random streams hang on, beside the run's seed: neither the step nor the other sets."""
        return f"validation/{self.name}" if self.name else "validation"


def eval_set_problems(sets: dict[str, EvalSetConfig]) -> Iterator[Problem]:
    for name, keys in sets.items():
        at = f"eval_sets.{name}"
        if not _NAME.fullmatch(name) or name in _MEASURED or name.startswith("pass_at_"):
            yield Problem(
                f"eval_sets: {show(name)} cannot stand in the names of metrics, as val/NAME/reward_mean. Choose "
                f"letters, digits, _, . and -, and none of {', '.join(_MEASURED)}.",
                (at,),
            )
        wrong = [k for k in keys.pass_at if not 1 <= k <= keys.num_answers]
        if wrong:
            yield Problem(
                f"{at}.pass_at: {wrong[0]} answers cannot be drawn from {keys.num_answers}. Raise "
                f"{at}.generating_args.num_return_sequences, or name numbers from 1 to {keys.num_answers}.",
                (f"{at}.pass_at", f"{at}.generating_args.num_return_sequences"),
            )
