"""On-policy distillation before anything starts: who teaches whom, ROLL's ways of writing it, what is wrong with the
settings; and which rows a teacher scores."""

from typing import Any

import numpy as np
import pytest

from roll.configs.plan.batch_plan import build_plan
from roll.configs.plan.describe import batch_rows
from roll.distributed.executor.jobs import RowChunk
from roll.distributed.executor.roles import _chosen
from roll.features.teachers.checks import opd_problems, opd_warnings
from roll.pipeline.rlvr.rlvr_config import RLVRConfig
from roll.rl.settings import credit_settings, teacher_weights
from roll.types.batch import Shard
from tests.helpers.configs import MINIMAL, checked, config, problems

TEACHER = {
    "model_args": {"model_name_or_path": "org/large"},
    "strategy_args": {"strategy_name": "hf_infer"},
    "device_mapping": [0],
}
CODE = {"rewards.code": {"reward": "exact_match"}}


def said(given: RLVRConfig) -> dict[str, str]:
    """What the printed plan says of a step."""
    return {row[0]: row[1] for row in batch_rows(given, build_plan(given))}


def texts(changes: dict[str, Any]) -> list[str]:
    return [problem.text for problem in opd_problems(config(changes))]


def test_one_teacher_is_for_all_domains_and_a_role_that_scores() -> None:
    given = config({"use_opd": True, "opd_kl_coef": 0.5, "teacher": TEACHER, **CODE})
    (first, second) = given.domains
    assert given.teacher_of == {first: "teacher", second: "teacher"}
    assert given.roles["teacher"].use == "score" and "teacher" in given.model_roles
    plan = build_plan(given)
    assert "teacher" in plan.scoring and plan.old_log_probs.source == "pass"
    assert plan.old_log_probs.reason == "advantages compare the teacher's log-probs with them"
    assert said(given)["teacher"] == f"advantage + 0.5 x (log q - log p) of {first}, {second}"
    assert teacher_weights(given, np.array([second, first])).tolist() == [0.5, 0.5]  # type: ignore[union-attr]


def test_several_teachers_have_domains_and_weights_of_their_own() -> None:
    (first,) = config({}).domains
    given = config({
        "is_pure_opd": True, **CODE,
        "teachers": {"code": {**TEACHER, "opd_kl_coef": 2.0}, "maths": {**TEACHER, "tag_included": [first]}},
    })  # fmt: skip
    assert given.teacher_of == {first: "teachers.maths", "code": "teachers.code"}
    assert teacher_weights(given, np.array(["code", first])).tolist() == [2.0, 1.0]  # type: ignore[union-attr]
    assert set(given.model_roles) >= {"teachers.maths", "teachers.code"}
    assert "and no reward" in said(given)["teachers.code"]


def test_teachers_score_their_domains_with_the_chosen_divergence() -> None:
    given = config({"is_pure_opd": True, "teacher": TEACHER, "opd_advantage": "js_divergence", "opd_js_weight": 0.3})
    (domain,) = given.domains
    assert said(given)["teacher"] == f"advantage + 1 x 0.7 x (log m - log p) of {domain}, and no reward"
    assert credit_settings(given, 0.0).teacher_share == 0.3 and list(opd_warnings(given)) == []
    alone = config({"is_pure_opd": True, "teacher": TEACHER, "opd_js_weight": 0.3})
    assert credit_settings(alone, 0.0).teacher_share is None
    assert list(opd_warnings(alone)) == ["opd_js_weight does nothing with opd_advantage: log_ratio."]
    # Rows 4, 0, 3 and a padding row; rows 0 and 4 are wanted of five.
    shard = Shard(np.array([4, 0, 3, 5]), None)
    wanted = np.array([True, False, False, False, True])
    assert _chosen(shard, RowChunk(0, 0, 4), wanted).tolist() == [0, 1]
    assert _chosen(shard, RowChunk(0, 1, 4), wanted).tolist() == [1]
    assert _chosen(shard, RowChunk(0, 1, 4), None).tolist() == [1, 2, 3]


def test_without_a_switch_no_teacher_is_started_and_nothing_changes() -> None:
    given = config({"teacher": TEACHER, "opd_kl_coef": 2.0})
    assert (
        given.teacher_of == {} and "teacher" not in given.model_roles and teacher_weights(given, np.array([])) is None
    )
    assert list(opd_warnings(given)) == [
        "teacher is not started: use_opd and is_pure_opd are off.",
        "opd_kl_coef does nothing: use_opd and is_pure_opd are off.",
    ]
    named = {"use_opd": True, "teachers": {"any": {**TEACHER, "tag_included": ["x"]}}}
    assert list(opd_warnings(config(named))) == ["teachers.any.tag_included does nothing: it is the only one."]
    assert list(opd_warnings(config({}))) == [] and list(opd_problems(config({}))) == []


@pytest.mark.parametrize("switch", ["is_pure_opd", "use_opd"])
def test_enable_reference_means_the_teacher_where_one_teaches_as_in_roll(switch: str) -> None:
    asked = {"enable_reference": True, "reference": ...}
    assert problems({switch: True, "teacher": TEACHER, **asked}) == []
    assert not config({switch: True, "teacher": TEACHER, **asked}).needs_reference
    assert [text.partition(":")[0] for text in problems(asked)] == ["reference is missing"]


def test_roll_writes_several_teachers_under_teacher() -> None:
    twice = problems({"is_pure_opd": True, "teacher": {"any": TEACHER}, "teachers": {"any": TEACHER}})
    assert any(text.startswith("teacher.any: unknown key") for text in twice), twice
    found = checked({"is_pure_opd": True, "teacher": {"any": TEACHER}})
    assert found.problems == () and found.config is not None
    assert set(found.config.teacher_of.values()) == {"teachers.any"}
    assert found.config.teachers["any"].name == "teachers.any"
    renamed = {"student_train": MINIMAL["actor_train"], "student_infer": MINIMAL["actor_infer"]}
    assert problems({"is_pure_opd": True, "teacher": TEACHER, "actor_train": ..., "actor_infer": ..., **renamed}) == []


def test_students_of_roll_are_read_as_policies_with_what_stands_in_them() -> None:
    """ROLL's YAMLs of pure distillation have no switch: its script sets it."""
    train, infer = MINIMAL["actor_train"], MINIMAL["actor_infer"]
    students = {
        "student_train": {
            **train,
            "data_args": {**train["data_args"], "dataset_dir": "data", "interleave_probs": "1.0"},
        },
        "student_infer": {**infer, "strategy_args": {"strategy_name": "vllm", "strategy_config": {"sleep_level": 2}}},
    }
    found = checked({"teacher": TEACHER, "actor_train": ..., "actor_infer": ..., **students})
    assert found.problems == () and found.config is not None and found.config.is_pure_opd
    assert any(text.startswith("student_train: is_pure_opd: true is taken from it") for text in found.warnings)
    off = checked({"teacher": TEACHER, "actor_train": ..., "actor_infer": ..., **students, "is_pure_opd": False})
    assert off.config is not None and not off.config.is_pure_opd


def test_tags_of_a_teacher_are_the_domain_whose_tags_they_all_are() -> None:
    """ROLL's YAML of several teachers names tags of rows."""
    rewards = {"mathematics": {"reward": "math_rule", "tag_included": ["dapo", "aime"]}, "code": CODE["rewards.code"]}
    rows = {"actor_train": {**MINIMAL["actor_train"], "data_args": {"file_name": "a.jsonl"}}}

    def taught(tags: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
        teachers = {"large": {**TEACHER, "tag_included": tags}, "other": {**TEACHER, "tag_included": ["code"]}}
        found = checked({"use_opd": True, "rewards": rewards, "teacher": teachers, **rows})
        return dict(found.config.teacher_of) if found.config else {}, found.warnings

    whole, warnings = taught(["dapo", "aime"])
    assert whole == {"mathematics": "teachers.large", "code": "teachers.other"}
    text = "teachers.large.tag_included: aime, dapo is taken as the domain mathematics, whose rows have this tag."
    assert text in warnings
    named, _ = taught(["mathematics", "dapo", "aime"])  # the domain beside its tags
    assert named == whole
    part, _ = taught(["dapo"])
    assert part == {"code": "teachers.other"}  # rows of aime would have no teacher


def test_what_cannot_work_is_said() -> None:
    (missing,) = texts({"use_opd": True})
    assert missing.startswith("use_opd: no teacher is configured. Add a section `teacher`")
    (first,) = config({}).domains
    found = texts({"use_opd": True, **CODE, "teachers": {"code": TEACHER, "other": TEACHER}})
    assert found[0].startswith(f"teachers: {first} has no teacher.")
    assert found[1].startswith("teachers.other is for other, but there is no such domain. Domains:")
    assert len(found) == 2
    (twice,) = texts({
        "use_opd": True, **CODE, "teachers": {first: {**TEACHER, "tag_included": ["code"]}, "code": TEACHER},
    })  # fmt: skip
    assert twice.startswith(f"teachers.{first} and teachers.code both teach code, but a domain has one teacher only.")
    critic = {"strategy_args": {"strategy_name": "deepspeed_train"}, "device_mapping": [0]}
    (valued,) = texts({"is_pure_opd": True, "teacher": TEACHER, "critic": critic, "adv_estimator": "gae"})
    assert valued.startswith("is_pure_opd: adv_estimator: gae has a critic")


@pytest.mark.parametrize("switch", ["use_opd", "is_pure_opd"])
def test_groups_of_one_are_for_pure_distillation(switch: str) -> None:
    found = problems({switch: True, "teacher": TEACHER, "num_return_sequences_in_group": 1})
    assert any("compares a reward with the others of its group" in text for text in found) == (switch == "use_opd")


@pytest.mark.parametrize("key", ["difficulty_mask", "error_max_len_clip", "difficulty_loss_weight"])
def test_pure_distillation_weighs_no_row_by_its_reward(key: str) -> None:
    found = problems({"is_pure_opd": True, "teacher": TEACHER, key: True})
    assert any(text.startswith(f"{key}: true chooses or weighs rows by their rewards") for text in found), found
    assert problems({"use_opd": True, "teacher": TEACHER, key: True}) == []
