"""The roles of a run in one table: what each is for, what stands on its model, and which keys of its section it reads.

`ROLES` are those of every reinforcement-learning run; a pipeline adds rows of its own (`AlgorithmConfig.roles`). What
depends on a role asks its row, never its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from roll.configs.sections.model import Head, ModelArgs
from roll.configs.tables.policy_losses import POLICY_FORMS, last_name

Use = Literal["train", "score", "generate", "cpu", "none"]

TASKS: Mapping[Use, str] = {
    "train": "learns",
    "score": "scores rows",
    "generate": "generates",
    "cpu": "runs on the CPU, without a model",
    "none": "has no workers of its own",
}

_PROCESSES = frozenset({"world_size", "system_envs"})
_ON_DEVICES = _PROCESSES | {
    "strategy_args", "model_args", "device_mapping", "num_gpus_per_worker", "backend_timeout",
}  # fmt: skip
_TRAINING_MODEL = {
    "disable_gradient_checkpointing", "gradient_checkpointing_use_reentrant", "recompute_granularity",
    "enable_activation_offload", "freeze_module_prefix", "lora_target", "lora_rank", "lora_alpha", "use_rslora",
    "lora_dropout", "additional_target", "adapter_name_or_path",
}  # fmt: skip
TOKENIZER = "model_args.tokenizer_path"
_MODEL = frozenset(f"model_args.{key}" for key in ModelArgs.model_fields) - {TOKENIZER}
_FROZEN = (_ON_DEVICES - {"model_args"}) | (_MODEL - {f"model_args.{key}" for key in _TRAINING_MODEL})
_TRAINERS_ONLY = frozenset({"model_args.fused_kernel_options", "model_args.ulysses_size"})
_SCORING = frozenset({
    "infer_batch_size", "use_dynamic_batching_in_infer", "max_tokens_per_microbatch_in_infer",
    "sequence_length_round_in_infer", "use_sequence_packing", "sequence_packing_args",
    "use_prefix_sharing",
    "use_torch_compile",
})  # fmt: skip
_TRAINING = frozenset({
    "training_args", "use_dynamic_batching_in_train", "max_tokens_per_microbatch_in_train",
    "sequence_length_round_in_train",
})  # fmt: skip
_READ_BY: Mapping[Use, frozenset[str]] = {
    "train": (_ON_DEVICES - {"model_args"}) | _MODEL | _SCORING | _TRAINING,
    "score": _FROZEN | _SCORING,
    "generate": (_FROZEN - _TRAINERS_ONLY) | {"generating_args", TOKENIZER},
    "cpu": _PROCESSES,
    "none": frozenset(),
}


@dataclass(frozen=True)
class Role:
    """One row. `name` is the YAML path of its section.

    `use`: what its workers do (none: a section with the keys of a role, and no workers of its own). `head`: what stands
    on its model, None without one; a reward head is a sequence head of one label that learns. `model_keys`: the run's
    keys that name its model, where model_name_or_path does not; the first that is given counts. `is_needed`: there is
    no run without it. `is_apart`: its prompts are no rows of the run, and weights of the run never reach it, as a
    judge's. `also_reads`: keys of its section that others of its use do not read (`section`, or `section.key`).
    `why_not`: why it reads no others, in a few words. `rows_together`: neighbouring rows that it learns as one sample,
    2 of a pair.
    """

    name: str
    use: Use
    head: Head | None = None
    model_keys: tuple[str, ...] = ()
    is_needed: bool = False
    is_apart: bool = False
    also_reads: frozenset[str] = frozenset()
    why_not: str = ""
    rows_together: int = 1

    def __post_init__(self) -> None:
        if self.use in ("train", "score", "generate") and self.head is None:
            raise ValueError(
                f"the role {self.name}, which {TASKS[self.use]}, has no head: lm, value, sequence or reward"
            )

    @property
    def learns(self) -> bool:
        return self.use == "train"

    @property
    def reads(self) -> frozenset[str]:
        return _READ_BY[self.use] | self.also_reads | {"name", "worker_cls"}

    @property
    def reason(self) -> str:
        return self.why_not or f"this role {TASKS[self.use]}"


_OF_ROLE = {last_name(key) for form in POLICY_FORMS.values() for key in form.keys if key != last_name(key)}
POLICY_LOSS = frozenset({"pg_variant"} | _OF_ROLE)
POLICY = POLICY_LOSS | {"model_update_frequency", "router_replay", "mtp_training_mode", "mtp_loss_scaling_factor"}
ACTOR_TRAIN = Role(
    "actor_train", "train", "lm", ("pretrain",), is_needed=True, also_reads=POLICY | {"data_args", TOKENIZER}
)  # fmt: skip
ACTOR_INFER = Role("actor_infer", "generate", "lm", ("pretrain",), is_needed=True)
CRITIC = Role(
    "critic",
    "train",
    "value",
    ("reward_pretrain", "pretrain"),
    also_reads=frozenset({"ppo_epochs", "max_grad_norm"}),
    why_not="this role learns values",
)
REFERENCE = Role("reference", "score", "lm", ("pretrain",))
REWARD_PRETRAIN = ("reward_pretrain",)
LLM_JUDGE, REWARD_MODEL = "llm_judge", "reward_model"
ROLL_JUDGE_PROMPT = "Qwen2.5-7B-Instruct-RLVR-prompt"
"""Rewards that a model gives."""
JUDGE_CHECKS = "roll.pipeline.rlvr.judge_checks"
"""Module of the checks of judges, for runs that have one."""


def reward_model_role(name: str) -> Role:
    """A reward model: the section `reward`, or one domain of `rewards`."""
    return Role(name, "score", "sequence", REWARD_PRETRAIN, also_reads=frozenset({"tag_included", TOKENIZER}))


def teacher_role(name: str) -> Role:
    """A teacher of on-policy distillation: the section `teacher`, or one of `teachers`."""
    return Role(name, "score", "lm", also_reads=frozenset({"opd_kl_coef", "tag_included"}))


ROLES: Mapping[str, Role] = {role.name: role for role in (ACTOR_TRAIN, ACTOR_INFER, CRITIC, REFERENCE)}
