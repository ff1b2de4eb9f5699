"""`eval_sets`: several validations, each with its own rows, sampling and name."""

from collections.abc import Iterator
from dataclasses import dataclass

from roll.configs.base import Settings, setting
from roll.configs.problems import Problem
from roll.configs.sections.configs_rollout import GeneratingArgs
from roll.configs.sections.data import DataArgs, Numbers
from roll.configs.sections.eval_set_names import name_problems, pass_at_problems, purpose_of


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
        return purpose_of(self.name)


def eval_set_problems(sets: dict[str, EvalSetConfig]) -> Iterator[Problem]:
    for name, keys in sets.items():
        yield from name_problems(name)
        yield from pass_at_problems(name, keys.pass_at, keys.num_answers, "generating_args.num_return_sequences")
