"""Settings of an agentic run: groups of episodes, how their rewards count, and all the rest."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import model_validator

from roll.configs.base import MOST_GROUPS, Settings, setting
from roll.configs.problems import Problem
from roll.configs.sections.algorithm import NAMES_NONE, AlgorithmConfig
from roll.configs.sections.cluster import GeneratingArgs, WorkerConfig
from roll.configs.sections.data import Names, Numbers
from roll.configs.sections.rollout import name_problems, pass_at_problems, purpose_of
from roll.configs.tables.roles import ACTOR_TRAIN, POLICY, ROLES, Role
from roll.envs.config import EnvConfig, lifted

# The sections `train_env_manager` and `val_env_manager`.

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
        "Extra episodes played per group; the first group_size to finish count, the rest is stopped.",
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
        "roll.pipeline.agentic.settings:DropEqualRewards is one. See is_use_additional_prompts.",
    )
    env_seeds: tuple[int, int] | None = setting(
        None,
        "Environment seeds are taken from [first, last); each group has one. Default: the lower half of the 31-bit "
        "numbers in training, the upper half in validation.",
    )
    env_retries: int = setting(1, "How often an episode whose environment crashed or hung starts again.", ge=0)
    step_timeout_s: float | None = setting(
        None, "Seconds one reset or step of an environment may take. Default: env_monitor.hung_timeout.", gt=0
    )
    episode_timeout_s: float | None = setting(
        None,
        "Seconds an episode may take, without the time that it waits for responses. Default: env_monitor.hung_timeout.",
        gt=0,
    )

    @property
    def num_envs(self) -> int:
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


# `eval_sets` of agentic runs: several validations, each with its own environments, sampling and name.

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
        settings = {"tags": self.tags, "group_size": self.group_size, "generating_args": self.generating_args}
        all_count = {"num_groups_partition": (1,) * len(self.tags), "group_size_redundancy": 0, "max_traj_per_env": -1}
        seeds = {} if self.env_seeds is None else {"env_seeds": self.env_seeds}
        return shared.model_copy(update={**settings, **all_count, **seeds})


@dataclass(frozen=True)
class ValidatedEnvs:
    """Set of validation: `val_env_manager` (without a name), or one of `eval_sets`. `at`: its YAML path."""

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


ROLL_FILTER = "roll.pipeline.agentic.agentic_pipeline.GroupFilter"
ROLE = "environments"

_READ = ("template", "template_kwargs", "image_min_pixels", "image_max_pixels")
PLAYER = replace(
    ACTOR_TRAIN,
    also_reads=POLICY | {f"data_args.{key}" for key in _READ},
    why_not="this role learns from episodes",
)
TRAIN_ENV_MANAGER = Role(
    "train_env_manager", "cpu", why_not="environments run on the CPU, and their responses come from actor_infer"
)
VAL_ENV_MANAGER = Role(
    "val_env_manager",
    "none",
    also_reads=frozenset({"generating_args"}),
    why_not="validation plays in the processes of the training and samples with actor_infer's",
)


EpisodeScope = Annotated[Literal["default", "batch", "group"] | None, NAMES_NONE]


class RewardNormalizationConfig(Settings):
    """`reward_normalization`: ROLL's words for norm_mean_type and norm_std_type."""

    grouping: Literal["batch", "traj_group_id", "tags", "state", "inductive"] = setting(
        "batch",
        "Over what: the step (batch), the group of episodes (traj_group_id; state is its older name), or the step's "
        "episodes of the same tag (tags; inductive is its older name).",
    )
    method: Literal["identity", "mean", "mean_std", "asym_clip"] | None = setting(
        None,
        "identity: the rewards as they are. mean: without their mean. mean_std: divided by their deviation, too. "
        "asym_clip: the same, clipped to [-1, 3]. None: as adv_estimator has it.",
    )
    norm_mean_type: EpisodeScope = setting(
        "default", "What the mean is taken over; none: over nothing. default, null: as grouping and method have it."
    )
    norm_std_type: EpisodeScope = setting("default", "What the deviation is taken over; likewise.")

    @property
    def norms(self) -> tuple[str | None, str | None]:
        """Scopes of mean and deviation, by grouping and method; "default" is adv_estimator's own."""
        scope = "group" if self.grouping in ("traj_group_id", "state") else "batch"
        match self.method:
            case None:
                return "default", "default"
            case "identity":
                return None, None
            case "mean":
                return scope, None
            case "mean_std" | "asym_clip":
                return scope, scope

    @property
    def by_tag(self) -> bool:
        return self.grouping in ("tags", "inductive")

    @property
    def limits(self) -> tuple[float, float] | None:
        """The range that normalised rewards are cut to."""
        return (-1.0, 3.0) if self.method == "asym_clip" else None


class EnvMonitorConfig(Settings):
    """`env_monitor`: what counts as hung."""

    enable: bool = setting(
        True, "Limit the time of calls and episodes by hung_timeout. Off: only limits that are set elsewhere hold."
    )
    hung_timeout: int = setting(3600, "Seconds after which a call, or an episode, counts as hung.", ge=1)


class AgentEndpointConfig(Settings):
    """`agent_endpoint`: where programs that run elsewhere take sessions. docs/agents.md."""

    listen: str | None = setting(
        None,
        "host:port of the machine that starts the run, for entries of custom_envs with env_manager_cls: proxy that "
        "have neither agent nor agent_command; port 0: any that is free, written to agent_endpoint.json of output_dir. "
        "None: no such entries.",
    )
    idle_timeout_s: float = setting(
        600.0, "Seconds without a request after which a session counts as abandoned, and is played anew.", gt=0
    )

    @property
    def host(self) -> str:
        return (self.listen or "").rpartition(":")[0].strip("[]")


class AgenticConfig(AlgorithmConfig):
    """All keys of an agentic run."""

    has_rows = False

    custom_envs: dict[str, EnvConfig] = setting({}, "Environments by tag.")
    train_env_manager: EnvManagerConfig = setting({}, "Environments of the training.")
    val_env_manager: EnvManagerConfig | None = setting(
        None, "Environments of the validation, with generating_args of its own (default: greedy). None: no validation."
    )
    eval_sets: dict[str, EnvSetConfig] = setting(
        {},
        "Evaluation sets by name, played beside `val_env_manager` or in its place; metrics are val/NAME/... "
        "docs/modes.md.",
    )
    reward_normalization: RewardNormalizationConfig = setting({}, "How episode rewards are normalised.")
    env_monitor: EnvMonitorConfig = setting({}, "Episodes that hang.")
    agent_endpoint: AgentEndpointConfig = setting({}, "Sessions for programs that run elsewhere.")
    batch_adjust_mode: Literal["padding", "copy", "delete", "auto", "random_sample"] = setting(
        "padding",
        "How rows are made to fill the updates. padding: rows with nothing to train on, which change no gradient. The "
        "others bias it: copy repeats rows drawn at random, delete leaves some out, auto does what needs fewer, "
        "random_sample draws as many as rollout_batch_size says.",
    )
    episode_reward_weight: float = setting(1.0, "gigpo: weight of the advantage of the whole episode.", ge=0)
    step_reward_weight: float = setting(
        1.0, "gigpo: weight of the advantage among turns that met the same state.", ge=0
    )
    step_reward_gamma: float = setting(0.95, "gigpo and step_reinforce: discount per turn.", ge=0, le=1)
    ratio_type: Literal["token", "segment"] = setting(
        "token", "Policy ratio per token, or one per turn; importance_sampling: segment says the same."
    )
    parse_tool_call_parameter_to_dict: bool = setting(
        False,
        "agent_native: arguments of tool calls in the environment's messages are JSON texts, which the chat template "
        "gets as mappings.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, tree: Any) -> Any:
        return _filled(tree) if isinstance(tree, Mapping) else tree

    @property
    def roles(self) -> Mapping[str, Role]:
        return {**super().roles, **{role.name: role for role in (PLAYER, TRAIN_ENV_MANAGER, VAL_ENV_MANAGER)}}

    @property
    def sections(self) -> Mapping[str, WorkerConfig]:
        validation = {} if self.val_env_manager is None else {VAL_ENV_MANAGER.name: self.val_env_manager}
        return {**super().sections, TRAIN_ENV_MANAGER.name: self.train_env_manager, **validation}

    @property
    def num_groups(self) -> int:
        return max(1, self.rollout_batch_size // self.train_env_manager.group_size)

    @property
    def group_size(self) -> int:
        return self.train_env_manager.group_size

    @property
    def max_replacements(self) -> int:
        """Groups that may take the place of filtered ones in a step.

        Example: 16 groups in 12 slots with max_traj_per_env 2 leave 24 - 16 = 8.
        """
        if not self.is_use_additional_prompts:
            return 0
        manager = self.train_env_manager
        room = manager.num_env_groups * manager.max_traj_per_env - self.num_groups
        return min(self.num_groups, room) if manager.max_traj_per_env > 0 else self.num_groups

    @property
    def reward_norms(self) -> tuple[str | None, str | None]:
        """reward_normalization is ROLL's way to say norm_mean_type and norm_std_type."""
        keys = self.reward_normalization
        mean, std = super().reward_norms if keys.method is None else keys.norms
        return (
            mean if keys.norm_mean_type == "default" else keys.norm_mean_type,
            std if keys.norm_std_type == "default" else keys.norm_std_type,
        )

    @property
    def batch_keys(self) -> tuple[str, str]:
        return "rollout_batch_size", "train_env_manager.group_size"

    @property
    def domains(self) -> tuple[str, ...]:
        return self.train_env_manager.tags

    @property
    def update_rounding(self) -> Literal["up", "down", "nearest"]:
        """batch_adjust_mode decides about samples that do not split into whole updates."""
        return {"delete": "down", "auto": "nearest"}.get(self.batch_adjust_mode, "up")  # type: ignore[return-value]

    @property
    def can_count_rows(self) -> bool:
        envs = [self.custom_envs.get(tag) for tag in self.domains]
        return bool(envs) and all(env is not None and env.asks_rows for env in envs)

    @property
    def is_multi_turn(self) -> bool:
        return True

    @property
    def num_groups_per_domain(self) -> dict[str, int]:
        slots = self.train_env_manager.slots or ("",)
        tags = [slots[g % len(slots)] for g in range(self.num_groups)]
        return {tag: tags.count(tag) for tag in self.train_env_manager.tags}

    @property
    def cpu_roles(self) -> Mapping[str, WorkerConfig]:
        """Training and validation share the processes that play episodes."""
        if not self.uses_engines:
            return {}
        manager = self.train_env_manager
        return {ROLE: manager.model_copy(update={"world_size": self.num_env_workers, "device_mapping": None})}

    @property
    def cpu_role_notes(self) -> Mapping[str, str]:
        return {ROLE: ", ".join(self.domains)}

    @property
    def missing_validation(self) -> str:
        return "" if self.validated else "val_env_manager"

    @property
    def validated(self) -> tuple[ValidatedEnvs, ...]:
        """Sets of validation, `val_env_manager` first. How many groups are played at once, retries and limits are the
        same in all."""
        main = self.val_env_manager
        shared = main or self.train_env_manager.model_copy(update={"env_seeds": None})
        first = () if main is None else (ValidatedEnvs("", VAL_ENV_MANAGER.name, main, self.val_batch_size),)
        return *first, *(
            ValidatedEnvs(name, f"eval_sets.{name}", keys.manager(shared), keys.num_episodes, keys.pass_at)
            for name, keys in self.eval_sets.items()
        )

    @property
    def num_env_workers(self) -> int:
        """Processes that play episodes. Example: 128 x 8 environments, 64 per worker: 16."""
        manager = self.train_env_manager
        if not manager.max_env_num_per_worker:
            return manager.world_size or 1
        return max(manager.world_size or 1, math.ceil(manager.num_envs / manager.max_env_num_per_worker))

    @property
    def jobs_per_worker(self) -> int:
        manager = self.train_env_manager
        counts = (manager.num_envs, *(validated.manager.num_envs for validated in self.validated))
        if self.is_async:  # validation is played beside groups in flight
            most = counts[0] + max(counts[1:], default=0)
        else:
            most = max(counts)
        return manager.max_env_num_per_worker or math.ceil(most / self.num_env_workers)

    @property
    def train_seeds(self) -> tuple[int, int]:
        """[first, last) of the environment seeds of the training."""
        return self.train_env_manager.env_seeds or TRAIN_SEEDS

    def timeouts(self, manager: EnvManagerConfig) -> tuple[float | None, float | None]:
        """Seconds a call into an environment, and an episode, may take; None: any."""
        default = float(self.env_monitor.hung_timeout) if self.env_monitor.enable else None
        return manager.step_timeout_s or default, manager.episode_timeout_s or default


def _filled(tree: Mapping[str, Any]) -> dict[str, Any]:
    from roll.configs.load.defaults import fill_roles  # workers get configurations that are built

    filled = fill_roles(tree, ROLES)
    for role in ("train_env_manager", "val_env_manager"):
        manager = filled.get(role)
        if not isinstance(manager, Mapping):
            continue
        manager = {"name": role, **manager}
        if manager.get("group_filter_cls") == ROLL_FILTER:
            manager["group_filter_cls"] = None
        if role == "val_env_manager" and not manager.get("generating_args"):
            manager["generating_args"] = {"temperature": 0.0}
        filled[role] = manager
    envs = filled.get("custom_envs")
    if isinstance(envs, Mapping):
        filled["custom_envs"] = {tag: lifted(env) if isinstance(env, Mapping) else env for tag, env in envs.items()}
    if filled.get("prompt_length") is None and type(filled.get("sequence_length")) is int:
        filled["prompt_length"] = max(1, min(1024, filled["sequence_length"] // 2))
    if filled.get("ratio_type") == "segment":
        filled.setdefault("importance_sampling", "segment")
    return filled
