"""Settings of distillation."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator

from roll.configs.base import setting
from roll.configs.plan.describe import train_rows
from roll.configs.plan.run_plan import RunPlan
from roll.configs.problems import Problem
from roll.configs.sections.cluster import WorkerConfig
from roll.configs.sections.data import Place
from roll.configs.strategies.choice import Choice
from roll.configs.tables.policy_losses import KdObjective
from roll.configs.tables.roles import TOKENIZER, Role
from roll.features.teachers.checks import whole_head_problems
from roll.pipeline.rows.row_config import VALIDATION, RowConfig
from roll.run.start.load import unread_keys

STUDENT = Role(
    "student",
    "train",
    "lm",
    ("student_pretrain", "pretrain"),
    is_needed=True,
    also_reads=frozenset({"data_args", TOKENIZER}),
    why_not="this role learns from rows and from its teacher",
)
TEACHER = Role("teacher", "score", "lm", ("teacher_pretrain",), is_needed=True, also_reads=frozenset({TOKENIZER}))


class DistillConfig(RowConfig):
    """All keys of distillation."""

    role_table = {role.name: role for role in (STUDENT, TEACHER, VALIDATION)}
    learner = STUDENT.name
    columns = "roll.pipeline.distill.distill_pipeline:columns"

    student_pretrain: Place | None = setting(
        None, "Directory or hub id of the student's starting weights. Default: pretrain."
    )
    teacher_pretrain: Place | None = setting(None, "Directory or hub id of the teacher.")
    student: WorkerConfig = setting({}, "The model that learns.")
    teacher: WorkerConfig = setting({}, "The model it learns from, over the same vocabulary; it stays as it is.")

    # columns
    question_key: str = setting("question", "Column with the prompt, of rows that hold no messages.")
    answer_key: str = setting("answer", "Column with the response.")

    # loss
    distill_loss_weight: float = setting(
        0.5, "Loss: this x divergence from the teacher + (1 - this) x negative log-likelihood.", gt=0, le=1
    )
    kd_objective: KdObjective = setting(
        "forward_kl",
        "The divergence of student p from teacher q: forward_kl KL(q, p), reverse_kl KL(p, q), js_divergence, "
        "skewed_forward_kl and skewed_reverse_kl (skew_lambda), or adaptive_kl, a mean of both directions "
        "(adaptive_kl_alpha). docs/distillation.md.",
    )
    kd_temperature: float = setting(1.0, "Temperature of the student's distribution in the divergence.", gt=0)
    teacher_temperature: float | None = setting(
        None, "Temperature of the teacher's distribution. Default: kd_temperature.", gt=0
    )
    adaptive_kl_alpha: float = setting(
        0.5, "With adaptive_kl: share of the teacher's probability that its likeliest tokens make up.", gt=0, lt=1
    )
    skew_lambda: float = setting(
        0.1, "With the skewed objectives: share of its first distribution in the second.", gt=0, lt=1
    )
    logits_topk: Annotated[int, BeforeValidator(lambda value: 0 if value == "full" else value)] = setting(
        0,
        "Tokens that the teacher tells of each position, its likeliest; all others together are one more. 0 or full: "
        "the whole distribution, as hidden states that meet the teacher's head where the student learns.",
        ge=0,
    )

    @property
    def temperatures(self) -> tuple[float, float]:
        """Temperatures of student and teacher."""
        return self.kd_temperature, self.teacher_temperature or self.kd_temperature


def distill_rows(config: DistillConfig, plan: RunPlan) -> Iterator[tuple[str, ...]]:
    """Yield the lines about a step in the printed plan."""
    yield from train_rows(config, plan)
    tokens_text = f"the {config.logits_topk} likeliest tokens and the rest" if config.logits_topk else "all tokens"
    student, theirs = config.temperatures
    at = f", at {student:g} and {theirs:g}" if (student, theirs) != (1, 1) else ""
    weight = config.distill_loss_weight
    yield "teacher", f"{weight:g} x {config.kd_objective} over {tokens_text}{at} + {1 - weight:g} x nll"


# What is wrong with the settings of distillation, beside its files and rows.

_OF_OBJECTIVE = {
    "adaptive_kl_alpha": ("adaptive_kl",),
    "skew_lambda": ("skewed_forward_kl", "skewed_reverse_kl"),
}


def distill_problems(config: DistillConfig) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    if config.logits_topk:
        return
    teacher, student = Choice(config.roles["teacher"], config.teacher), ("student", config.student)
    yield from whole_head_problems("logits_topk", "0 (the whole distribution)", teacher, student, "logits_topk: 64")


def distill_warnings(config: DistillConfig) -> Iterator[str]:
    """Keys that distillation has no use for."""
    for key, objectives in _OF_OBJECTIVE.items():
        if config.is_changed(key) and config.kd_objective not in objectives:
            yield f"{key} does nothing with kd_objective: {config.kd_objective}; it is for {' and '.join(objectives)}."
    yield from unread_keys(config.data_args, "question_key, answer_key and data_args.messages")
