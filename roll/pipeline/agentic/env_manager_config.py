"""The sections `train_env_manager` and `val_env_manager`."""

from roll.configs.base import setting
from roll.configs.limits import MOST_GROUPS
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.data import Names, Numbers

SEEDS = 1 << 30
TRAIN_SEEDS, VAL_SEEDS = (0, SEEDS), (SEEDS, 2 * SEEDS)
"""[first, last) of the environment seeds, where no env_seeds are given."""


class EnvManagerConfig(WorkerConfig):
    """`train_env_manager` and `val_env_manager`: which environments, how many, in which groups."""

    num_env_groups: int = setting(
        128,
        "Groups of environments that run at once. Default of the training, where group_size is left out too: "
        "the groups of a step.",
        ge=1,
        le=MOST_GROUPS,
    )
    group_size: int = setting(
        1,
        "Episodes with the same environment seed, compared with each other. Default of the training: 8 where "
        "advantages compare within a group, as those of grpo do, and 1 elsewhere.",
        ge=1,
        le=MOST_GROUPS,
    )
    group_size_redundancy: int = setting(
        0,
        "So many more are played per group; the first group_size to finish count, the rest is stopped.",
        ge=0,
        le=MOST_GROUPS,
    )
    tags: Names = setting((), "Entries of custom_envs that are played.")
    num_groups_partition: Numbers = setting((), "How many of num_env_groups each tag gets. Default: equal shares.")
    max_traj_per_env: int = setting(
        -1,
        "Most episodes of one environment in a step, those of replaced groups included; -1 or 0: as many as it takes.",
        ge=-1,
    )
    format_penalty: float = setting(0.0, "format_penalty of tags that have no strategy_args of their own.")
    max_env_num_per_worker: int = setting(0, "Most environments in one process; 0: all in world_size processes.", ge=0)
    group_filter_cls: str | None = setting(
        None,
        "Which groups to train on: package.module:object, called with a TrajectoryGroup, True keeps it; "
        "roll.pipeline.agentic.group_filters:DropEqualRewards is one. See is_use_additional_prompts.",
    )
    env_seeds: tuple[int, int] | None = setting(
        None,
        "Environment seeds are taken from [first, last); each group has one. Default: the lower half of the 31-bit "
        "numbers in training, the upper half in validation.",
    )
    env_retries: int = setting(1, "An episode whose environment crashed or hung starts again so many times.", ge=0)
    step_timeout_s: float | None = setting(
        None, "Seconds one reset or step of an environment may take. Default: env_monitor.hung_timeout.", gt=0
    )
    episode_timeout_s: float | None = setting(
        None,
        "Seconds an episode may take, without the time that it waits for answers. Default: env_monitor.hung_timeout.",
        gt=0,
    )

    @property
    def num_envs(self) -> int:
        """Environments that run at once."""
        return self.num_env_groups * (self.group_size + self.group_size_redundancy)

    @property
    def partition(self) -> tuple[int, ...]:
        """Groups of each tag. The preflight has checked that they fit."""
        if self.num_groups_partition or not self.tags:
            return self.num_groups_partition
        return (self.num_env_groups // len(self.tags),) * len(self.tags)

    @property
    def slots(self) -> tuple[str, ...]:
        """The tag of each of the num_env_groups groups; group g of the run has that of g modulo their number.

        Tags take turns, so that any stretch of groups has about the shares of the partition.
        Example: tags a, b with partition 4, 2: a b a a b a.
        """
        places = [
            ((2 * i + 1) / (2 * count), order, tag)
            for order, (tag, count) in enumerate(zip(self.tags, self.partition, strict=False))
            for i in range(count)
        ]
        return tuple(tag for _, _, tag in sorted(places))
