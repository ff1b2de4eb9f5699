"""Settings of an RLVR run: prompts with verifiable answers."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import model_validator

from roll.configs.base import MOST_GROUPS, Settings, setting
from roll.configs.problems import Problem
from roll.configs.sections.algorithm import AlgorithmConfig
from roll.configs.sections.cluster import GeneratingArgs, WorkerConfig
from roll.configs.sections.data import DataArgs, Numbers, Place
from roll.configs.sections.rollout import name_problems, pass_at_problems, purpose_of
from roll.configs.tables.roles import ROLES, Role, reward_model_role
from roll.rewards.config import RewardConfig

# `eval_sets`: several validations, each with its own rows, sampling and name.


class EvalSetConfig(Settings):
    """One of `eval_sets`: rows that are validated under a name of their own."""

    data_args: DataArgs = setting({}, "Its rows, as in validation.")
    generating_args: GeneratingArgs = setting(
        {}, "How it is sampled; num_return_sequences is the number of responses to each prompt. Default: greedy."
    )
    pass_at: Numbers = setting(
        (),
        "The k of val/NAME/pass_at_k. Default: 2, 4, 8 ... up to the number of responses; val/NAME/reward_mean is "
        "the mean over all responses.",
    )

    @property
    def num_answers(self) -> int:
        return self.generating_args.num_return_sequences or 1


@dataclass(frozen=True)
class Validated:
    """Set of validation: `validation` (without a name), or one of `eval_sets`. `at`: its YAML path."""

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


REWARD_READS, REWARD_IS = frozenset({"tag_included"}), "this reward is a function and runs on the CPU"
JUDGE_READS = REWARD_READS | {
    f"generating_args.{key}" for key in ("temperature", "top_p", "max_new_tokens", "stop_strings")
}
JUDGE_IS = "this judge is asked over HTTP"
MODEL_IS = "its responses are scored by the model of the section `reward`"
SHARED_MODEL = {"model_args.model_name_or_path", "model_args.download_type"}
REWARD = reward_model_role("reward")
LEARNT = "actor_train.data_args"
"""The rows that an RLVR run learns from; it is evaluated on others."""
PROMPTED = frozenset({"data_args.template", "data_args.template_kwargs"})
JUDGE = Role(
    "reward_model",
    "generate",
    "lm",
    is_apart=True,
    also_reads=PROMPTED,
    why_not="these engines judge, each domain with generating_args of its own",
)
SHARED_IS = "its responses are judged by the engines of the section `reward_model`"
VALIDATION = Role(
    "validation",
    "none",
    also_reads=frozenset({"data_args", "generating_args"}),
    why_not="validation has no workers of its own and samples with actor_infer's",
)


class RLVRConfig(AlgorithmConfig):
    """All keys of an RLVR run."""

    rows_path = "roll.pipeline.rlvr.row_operators:places"

    num_return_sequences_in_group: int = setting(
        1,
        "Responses per prompt: the group size. Default: 8 where advantages compare within a group, as those of grpo "
        "do, and 1 elsewhere.",
        ge=1,
        le=MOST_GROUPS,
    )
    group_size_redundancy: int = setting(
        0,
        "Extra responses begun per prompt in training: the first num_return_sequences_in_group to end make the "
        "group, the engine cuts the others. Which those are depends on timing, so a run is not repeated exactly; and "
        "long responses are cut more often (rollout/length_bias).",
        ge=0,
        le=MOST_GROUPS,
    )
    rewards: dict[str, RewardConfig] = setting({}, "One entry per domain.")
    reward: WorkerConfig | None = setting(
        None, "The reward model of all domains with `reward: reward_model` that have no strategy_args of their own."
    )
    reward_model: WorkerConfig | None = setting(
        None, "The judge of all domains with `judge_model_type: cluster`: its model, its engines and their devices."
    )
    validation: WorkerConfig | None = setting(
        None,
        "Rows (data_args) and sampling (generating_args) of the validation. Without generating_args it is greedy. "
        "None: no validation.",
    )
    eval_sets: dict[str, EvalSetConfig] = setting(
        {},
        "Evaluation sets by name, validated beside `validation` or in its place; metrics are val/NAME/... "
        "docs/modes.md.",
    )
    global_template: str | None = setting(None, "Chat template of all roles; wins over data_args.template.")
    tag_to_template: dict[str, str] = setting(
        {}, "Chat template of the rows with a tag, by name or path; wins over global_template."
    )
    save_logging_board_dir: Place | None = setting(
        None,
        "Where every response that is trained on goes with its tokens, their log-probs (of the engine, the policy, "
        "the reference), values and reward, as RL Logging Board shows them: a JSONL file per step, not pruned.",
    )
    rl_loss_coef: float = setting(1.0, "Weight of the policy loss, KL loss included.", ge=0)

    # which samples count, and how much
    max_len_mask: bool = setting(False, "Leave responses that were cut off at the length limit out of the loss.")
    difficulty_mask: bool = setting(False, "Leave out groups whose mean reward is not between the two thresholds.")
    difficulty_low_threshold: float = setting(0.0, "With difficulty_mask: groups at or below this mean are too hard.")
    difficulty_high_threshold: float = setting(1.0, "With difficulty_mask: groups at or above this mean are too easy.")
    error_max_len_clip: bool = setting(
        False, "Drop responses with a reward of 0 or less and at least error_max_len_threshold tokens."
    )
    error_max_len_threshold: int = setting(
        9999999999, "With error_max_len_clip: length from which responses are dropped.", ge=1, le=9999999999
    )
    difficulty_loss_weight: bool = setting(
        False,
        "Weight samples by how hard their task is: the data's column `difficulty` (0 to 1), or 1 - the mean reward.",
    )
    length_loss_weight: bool = setting(False, "Weight samples by how short their response is.")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, tree: Any) -> Any:
        from roll.configs.load.defaults import fill_roles  # workers get configurations that are built

        roles = {role.name: role for role in (REWARD, JUDGE)}
        return fill_roles(tree, {**ROLES, **roles}) if isinstance(tree, Mapping) else tree

    @property
    def directories(self) -> Mapping[str, str | None]:
        return {**super().directories, "save_logging_board_dir": self.save_logging_board_dir}

    @property
    def shared_template(self) -> str | None:
        return self.global_template

    @property
    def num_groups(self) -> int:
        return self.rollout_batch_size

    @property
    def group_size(self) -> int:
        return self.num_return_sequences_in_group

    @property
    def batch_keys(self) -> tuple[str, str]:
        return "rollout_batch_size", "num_return_sequences_in_group"

    @property
    def roles(self) -> Mapping[str, Role]:
        rewards = [_reward_role(f"rewards.{domain}", worker) for domain, worker in self.rewards.items()]
        return {**super().roles, **{role.name: role for role in (*rewards, REWARD, JUDGE, VALIDATION)}}

    @property
    def sections(self) -> Mapping[str, WorkerConfig]:
        optional = {VALIDATION.name: self.validation, REWARD.name: self.reward, JUDGE.name: self.reward_model}
        rewards = {f"rewards.{domain}": worker for domain, worker in self.rewards.items()}
        return {
            **super().sections,
            **rewards,
            **{name: worker for name, worker in optional.items() if worker is not None},
        }

    @property
    def model_rewards(self) -> Mapping[str, RewardConfig]:
        """The domains whose answers a reward model scores, after the rollout."""
        return {domain: worker for domain, worker in self.rewards.items() if worker.is_model}

    @property
    def data_args(self) -> Mapping[str, DataArgs]:
        places = {"actor_train.data_args": self.actor_train.data_args} if self.has_rollouts else {}
        validated = self.validated if self.uses_engines else ()
        return places | {f"{one.at}.data_args": one.data_args for one in validated}

    @property
    def pool_rewards(self) -> Mapping[str, RewardConfig]:
        """The domains whose answers are scored in a pool of processes, while others are sampled."""
        return {
            domain: worker
            for domain, worker in self.rewards.items()
            if not (worker.is_model or worker.is_judged_by_engines)
        }

    @property
    def scorer_of(self) -> Mapping[str, str]:
        """The role whose model scores a domain's answers."""
        return {
            d: f"rewards.{d}" if worker.has_reward_model else REWARD.name for d, worker in self.model_rewards.items()
        }

    @property
    def judge_of(self) -> Mapping[str, str]:
        """The role whose engines judge a domain's answers."""
        return {
            domain: f"rewards.{domain}" if worker.has_own_judge else JUDGE.name
            for domain, worker in self.rewards.items()
            if worker.is_judged_by_engines
        }

    @property
    def judge_roles(self) -> Mapping[str, WorkerConfig]:
        """The judges that are started, by role."""
        used = set(self.judge_of.values())
        return {name: worker for name, worker in self.sections.items() if name in used}

    @property
    def after_rollout_domains(self) -> frozenset[str]:
        """The domains whose answers are scored after the rollout: by reward models, and by judges that share devices
        with other roles."""
        devices = {name: set(worker.device_mapping or ()) for name, worker in self.model_roles.items()}

        def shares(role: str) -> bool:
            role_devices = devices.get(role, set())
            return any(role_devices & others for name, others in devices.items() if name != role)

        return frozenset(self.model_rewards) | {domain for domain, role in self.judge_of.items() if shares(role)}

    @property
    def model_roles(self) -> Mapping[str, WorkerConfig]:
        unused = {REWARD.name, JUDGE.name} - {*self.scorer_of.values(), *self.judge_of.values()}
        return {name: worker for name, worker in super().model_roles.items() if name not in unused}

    @property
    def scorer_roles(self) -> Mapping[str, WorkerConfig]:
        """The reward models that are started, by role."""
        used = set(self.scorer_of.values())
        return {name: worker for name, worker in self.sections.items() if name in used}

    def scorers_without(self, domains: Collection[str]) -> set[str]:
        """The reward models that score none of these domains."""
        return set(self.scorer_roles) - {self.scorer_of.get(domain) for domain in domains}

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.rewards)

    @property
    def cpu_roles(self) -> Mapping[str, WorkerConfig]:
        if not self.uses_engines:
            return {}
        return {f"rewards.{domain}": worker for domain, worker in self.pool_rewards.items()}

    @property
    def cpu_role_notes(self) -> Mapping[str, str]:
        return {f"rewards.{domain}": _note(worker) for domain, worker in self.pool_rewards.items()}

    @property
    def missing_validation(self) -> str:
        return "" if self.validated else "validation"

    @property
    def validated(self) -> tuple[Validated, ...]:
        """Sets of validation, `validation` first."""
        keys = self.validation
        main = () if keys is None else (Validated("", VALIDATION.name, keys.data_args, keys.generating_args),)
        return *main, *(
            Validated(name, f"eval_sets.{name}", keys.data_args, keys.generating_args, keys.pass_at)
            for name, keys in self.eval_sets.items()
        )


def _reward_role(name: str, worker: RewardConfig) -> Role:
    if worker.is_model:
        shared = Role(name, "none", also_reads=REWARD_READS | SHARED_MODEL, why_not=MODEL_IS)
        return reward_model_role(name) if worker.has_reward_model else shared
    match worker.judge_model_type if worker.is_judge else None:
        case "inference":
            return Role(name, "generate", "lm", is_apart=True, also_reads=REWARD_READS | PROMPTED)
        case "cluster":
            return Role(name, "none", also_reads=REWARD_READS | {"generating_args"}, why_not=SHARED_IS)
        case "api":
            return Role(name, "cpu", also_reads=JUDGE_READS, why_not=JUDGE_IS)
    return Role(name, "cpu", also_reads=REWARD_READS, why_not=REWARD_IS)


def _note(worker: RewardConfig) -> str:
    return f"{worker.reward}: {worker.judge_model_name}" if worker.is_judge else worker.reward or ""
