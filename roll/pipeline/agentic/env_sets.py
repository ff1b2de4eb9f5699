"""`eval_sets` of agentic runs: several validations, each with its own environments, sampling and name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from roll.configs.base import Settings, setting
from roll.configs.limits import MOST_GROUPS
from roll.configs.problems import Problem
from roll.configs.sections.configs_rollout import GeneratingArgs
from roll.configs.sections.data import Names, Numbers
from roll.configs.sections.eval_set_names import name_problems, pass_at_problems, purpose_of
from roll.pipeline.agentic.env_manager_config import VAL_SEEDS, EnvManagerConfig

_TAKEN = ("crashes", "hangs", "success_mean")


class EnvSetConfig(Settings):
    """One of `eval_sets`: environments that are played under a name of their own."""

    tags: Names = setting((), "Entries of custom_envs that are played, in turn.")
    num_episodes: int = setting(128, "Episodes of a validation.", ge=1, le=MOST_GROUPS)
    group_size: int = setting(1, "Episodes with the same environment seed.", ge=1, le=MOST_GROUPS)
    env_seeds: tuple[int, int] | None = setting(
        None,
        "Environment seeds are taken from [first, last), the first ones. Default: those of val_env_manager.",
    )
    generating_args: GeneratingArgs = setting({}, "How it is sampled. Default: greedy.")
    pass_at: Numbers = setting((), "The k of val/NAME/pass_at_k. Default: 2, 4, 8 ... up to group_size.")

    def manager(self, shared: EnvManagerConfig) -> EnvManagerConfig:
        """Played as `shared` says in all that a set does not."""
        own = {"tags": self.tags, "group_size": self.group_size, "generating_args": self.generating_args}
        all_count = {"num_groups_partition": (1,) * len(self.tags), "group_size_redundancy": 0, "max_traj_per_env": -1}
        seeds = {} if self.env_seeds is None else {"env_seeds": self.env_seeds}
        return shared.model_copy(update={**own, **all_count, **seeds})


@dataclass(frozen=True)
class ValidatedEnvs:
    """What is validated: `val_env_manager` (without a name), or one of `eval_sets`. `at`: its YAML path."""

    name: str
    at: str
    manager: EnvManagerConfig
    num_episodes: int
    pass_at: tuple[int, ...] = ()

    @property
    def purpose(self) -> str:
        return purpose_of(self.name)

    @property
    def seeds(self) -> tuple[int, int]:
        return self.manager.env_seeds or VAL_SEEDS


def env_set_problems(sets: Mapping[str, EnvSetConfig], tags: Collection[str]) -> Iterator[Problem]:
    """`tags`: of val_env_manager, whose metrics are val/<tag>/..."""
    for name, keys in sets.items():
        yield from name_problems(name, (*_TAKEN, *tags))
        yield from pass_at_problems(name, keys.pass_at, keys.group_size, "group_size")
