"""Settings of direct preference optimization."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated

from pydantic import AfterValidator

from roll.configs.base import setting
from roll.configs.plan.describe import train_rows
from roll.configs.plan.run_plan import RunPlan, build_run_plan
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.tables.presets import known_algorithm, preset_rows
from roll.configs.tables.roles import REFERENCE, TOKENIZER, Role
from roll.pipeline.rows.row_config import VALIDATION, PairConfig

ACTOR_TRAIN = Role(
    "actor_train",
    "train",
    "lm",
    ("pretrain",),
    is_needed=True,
    also_reads=frozenset({"data_args", TOKENIZER}),
    why_not="this role learns from pairs",
    rows_together=2,
)


class DPOConfig(PairConfig):
    """All keys of direct preference optimization."""

    role_table = {role.name: role for role in (ACTOR_TRAIN, REFERENCE, VALIDATION)}
    learner = ACTOR_TRAIN.name
    algorithms = "dpo"

    actor_train: WorkerConfig = setting({}, "The model that learns. A sample of its batches is a pair.")
    reference: WorkerConfig | None = setting(
        None, "The model it is compared with, by default that of `pretrain`. With LoRA it is actor_train's own."
    )

    # loss
    algorithm: Annotated[str, AfterValidator(partial(known_algorithm, pipeline="dpo"))] | None = setting(
        None,
        "An algorithm by name, which fills in the keys of its loss: dpo, cdpo or ipo; what the YAML says itself stays. "
        "`roll explain NAME` shows the formula.",
    )
    beta: float = setting(0.1, "Reward of a response: this x (log p - log p of the reference).", gt=0)
    ipo: bool = setting(False, "IPO's squared loss in place of DPO's.")
    label_smoothing: float = setting(
        0.0, "Share of pairs that are taken to be labelled the wrong way round (cDPO).", ge=0, lt=0.5
    )
    average_log_probs: bool = setting(
        False, "Log-probs of a response are means over its tokens, not sums: its length does not count."
    )
    reference_free: bool = setting(False, "Compare with nothing: the reference's log-probs are 0.")
    sft_loss_coef: float = setting(
        0.0, "Weight of the chosen responses' negative log-likelihood per token in the loss.", ge=0
    )

    @property
    def policy_is_reference(self) -> bool:
        return not self.reference_free and self.actor_train.model_args.has_lora

    @property
    def model_roles(self) -> Mapping[str, WorkerConfig]:
        is_started = not (self.reference_free or self.policy_is_reference)
        return {name: worker for name, worker in super().model_roles.items() if name != "reference" or is_started}


def dpo_plan(config: DPOConfig) -> RunPlan:
    """An update per step; with a validation, or as its own reference, the model scores as well."""
    scores = config.validation is not None or config.policy_is_reference
    return build_run_plan(config, frozenset({ACTOR_TRAIN.name}) if scores else frozenset())


def dpo_rows(config: DPOConfig, plan: RunPlan) -> Iterator[tuple[str, ...]]:
    """Yield the lines about a step in the printed plan."""
    yield from train_rows(config, plan)
    if config.reference_free:
        yield "reference", "none"
    else:
        who = "actor_train without its adapters" if config.policy_is_reference else "reference"
        yield "reference", f"{who}: log-probs of every row once, in the first epoch"
    yield from preset_rows(config.algorithm, config.value)


# What is wrong with the settings of direct preference optimization, beside its files and rows.


def dpo_problems(config: DPOConfig) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    if config.reference is None and not config.reference_free and not config.policy_is_reference:
        yield Problem(
            "reference is missing: the loss compares actor_train with it. Add a section reference (strategy_args, "
            "device_mapping), train adapters (actor_train.model_args.lora_target), or set reference_free: true.",
            ("reference", "reference_free"),
        )
    if config.ipo and config.label_smoothing:
        yield Problem(
            f"label_smoothing: {config.label_smoothing:g} does nothing with ipo: true, whose loss is bounded without "
            "it. Remove one.",
            ("label_smoothing", "ipo"),
        )


def dpo_warnings(config: DPOConfig) -> Iterator[str]:
    """Sections and keys without effect."""
    if config.reference is not None and config.reference_free:
        yield "reference is not started: reference_free compares with no model."
    if config.reference is not None and config.policy_is_reference:
        yield "reference is not started: with LoRA its log-probs are those of actor_train without its adapters."
    if config.policy_is_reference and config.actor_train.model_args.adapter_name_or_path is not None:
        yield (
            "actor_train.model_args.adapter_name_or_path: the reference is the model without any adapter, not the "
            "policy that the run starts from."
        )
