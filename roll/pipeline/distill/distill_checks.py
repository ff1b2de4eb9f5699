"""What is wrong with the settings of distillation, beside its files and rows."""

from collections.abc import Iterator

from roll.configs.checks.head_checks import whole_head_problems
from roll.configs.problems import Problem
from roll.configs.strategies.spec import Choice
from roll.pipeline.distill.distill_config import DistillConfig
from roll.pipeline.rows.row_checks import unread_keys

_NOT_READ = ("prompt", "tag", "ground_truth", "tools", "domain_interleave_probs")
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
    yield from unread_keys(config.data_args, _NOT_READ, "question_key, answer_key and data_args.messages")
