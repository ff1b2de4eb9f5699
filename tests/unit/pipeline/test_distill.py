"""Distillation before anything starts: roles, plan, what is wrong with the settings, and rows of which the first token
is no answer."""

from typing import Any

from roll.pipeline.distill.distill_config import DistillConfig, distill_problems, distill_rows, distill_warnings
from roll.pipeline.distill.distill_pipeline import divergence
from roll.pipeline.rows.row_config import row_plan


def config(**changed: Any) -> DistillConfig:
    student = {"strategy_args": {"strategy_name": "deepspeed_train"}, "device_mapping": [0]}
    teacher = {"strategy_args": {"strategy_name": "hf_infer"}, "device_mapping": [1]}
    given: dict[str, Any] = {"student_pretrain": "small", "teacher_pretrain": "large", "num_gpus_per_node": 2}
    given |= {"student": student | changed.pop("student", {}), "teacher": teacher | changed.pop("teacher", {})}
    return DistillConfig.model_validate(given | changed)


def megatron(name: str, **settings: int) -> dict[str, Any]:
    return {"strategy_args": {"strategy_name": name, "strategy_config": settings}, "device_mapping": [0, 1]}


def test_the_student_learns_and_the_teacher_scores_each_with_its_own_model() -> None:
    given = config()
    assert {name: worker.model_args.model_name_or_path for name, worker in given.model_roles.items()} == {
        "student": "small",
        "teacher": "large",
    }
    plan = row_plan(given)
    assert plan.scoring == {"teacher"} and list(plan.trains) == ["student"]
    assert row_plan(config(validation={})).scoring == {"student", "teacher"}
    assert config(student_pretrain=None, pretrain="base").student.model_args.model_name_or_path == "base"


def test_temperatures_and_keys_are_of_the_objective() -> None:
    rows = {row[0]: row[1] for row in distill_rows(config(), row_plan(config()))}
    assert rows["teacher"] == "0.5 x forward_kl over all tokens + 0.5 x nll"
    other = config(logits_topk=64, kd_temperature=2, distill_loss_weight=0.85, kd_objective="js_divergence")
    rows = {row[0]: row[1] for row in distill_rows(other, row_plan(other))}
    assert rows["teacher"] == "0.85 x js_divergence over the 64 likeliest tokens and the rest, at 2 and 2 + 0.15 x nll"
    found = divergence(config(kd_temperature=2, skew_lambda=0.3, kd_objective="skewed_forward_kl"))
    assert (found.temperature, found.teacher_temperature, found.skew) == (2, 2, 0.3)
    assert divergence(config(kd_temperature=2, teacher_temperature=1)).teacher_temperature == 1
    assert config(logits_topk="full").logits_topk == 0
    (text,) = distill_warnings(config(adaptive_kl_alpha=0.7))
    assert text == "adaptive_kl_alpha does nothing with kd_objective: forward_kl; it is for adaptive_kl."
    assert list(distill_warnings(config(adaptive_kl_alpha=0.7, kd_objective="adaptive_kl"))) == []
    assert list(distill_warnings(config(skew_lambda=0.7, kd_objective="skewed_reverse_kl"))) == []


def test_a_whole_distribution_needs_the_heads_of_both_whole() -> None:
    assert list(distill_problems(config())) == []
    (of_teacher,) = distill_problems(config(teacher=megatron("megatron_infer", tensor_model_parallel_size=2)))
    assert of_teacher.text == (
        "logits_topk: 0 (the whole distribution) with teacher.strategy_args.strategy_name: megatron_infer, which does "
        "not hand over hidden states and its head. Supported by: deepspeed_infer, hf_infer, fsdp2_infer. Use one of "
        "them, or set logits_topk: 64."
    )
    (of_student,) = distill_problems(config(student=megatron("megatron_train", tensor_model_parallel_size=2)))
    assert "tensor parallel divides it by 2" in of_student.text
    both = {
        "student": megatron("megatron_train", tensor_model_parallel_size=2),
        "teacher": megatron("megatron_infer", tensor_model_parallel_size=2),
    }
    assert list(distill_problems(config(**both, logits_topk=64))) == []
    assert list(distill_problems(config(student=megatron("megatron_train", pipeline_model_parallel_size=2)))) == []
