"""What is wrong with the settings of distillation, beside its files and rows."""

from collections.abc import Iterator

from roll.configs.plan.parallel import parallel_sizes
from roll.configs.problems import Problem
from roll.configs.strategies.table import STRATEGIES, spec_of
from roll.pipeline.distill.distill_config import DistillConfig
from roll.pipeline.row_checks import unread_keys

_NOT_READ = ("prompt", "tag", "ground_truth", "domain_interleave_probs")
_OF_OBJECTIVE = {
    "adaptive_kl_alpha": ("adaptive_kl",),
    "skew_lambda": ("skewed_forward_kl", "skewed_reverse_kl"),
}


def distill_problems(config: DistillConfig) -> Iterator[Problem]:
    """Everything that cannot work, whatever the machine."""
    if config.logits_topk:
        return
    at = "logits_topk: 0 (the whole distribution)"
    spec, key = spec_of(config.teacher.strategy_name), "teacher.strategy_args.strategy_name"
    if spec.name in STRATEGIES and not spec.hands_over_head:
        able = ", ".join(name for name, each in STRATEGIES.items() if each.hands_over_head)
        text = f"{at} takes hidden states and the head of the teacher, and {key}: {spec.name} hands over neither."
        yield Problem(f"{text} Use {able}, or set logits_topk: 64.", (key, "logits_topk"))
    if (size := parallel_sizes(config.student).tensor) > 1:
        key = "student.strategy_args.strategy_config"
        text = f"{at} takes the student's head whole on a rank, and tensor parallel divides it by {size} ({key})."
        yield Problem(f"{text} Set logits_topk: 64, or no tensor parallel.", (key, "logits_topk"))


def distill_warnings(config: DistillConfig) -> Iterator[str]:
    """Keys that distillation has no use for."""
    for key, objectives in _OF_OBJECTIVE.items():
        if config.is_changed(key) and config.kd_objective not in objectives:
            yield f"{key} does nothing with kd_objective: {config.kd_objective}; it is for {' and '.join(objectives)}."
    yield from unread_keys(config, _NOT_READ, "question_key, answer_key and data_args.messages")
