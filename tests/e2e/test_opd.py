"""On-policy distillation as a user starts it: a policy that samples by itself reaches its teacher without a reward, and
goes on from a checkpoint bit for bit; and beside a reward, with a teacher for each domain."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import Run, comparable, run_starter

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def teacher(sort_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What fine-tuning on the right answers of the pairs makes of the demo's model."""
    rows = (f"sft_train.data_args.file_name={sort_data}/pairs.jsonl", "response_key=chosen", "validation=null")
    with run_starter(tmp_path_factory.mktemp("teacher")) as start:
        run = start(sort_data, "tiny_sort_sft", *rows, pipeline="sft").finished()
        return run.output_dir / "checkpoints" / "step_000060" / "hf_model"


def test_a_policy_reaches_its_teacher_without_a_reward_and_goes_on_bit_for_bit(
    sort_data: Path, teacher: Path, start_run: Callable[..., Run]
) -> None:
    given = (f"teacher.model_args.model_name_or_path={teacher}", "save_steps=75")
    whole = start_run(sort_data, "tiny_sort_opd", *given)
    assert whole.wait(900) == 0, whole.text
    # what the teacher itself answers: a run whose policy it is, validated before its first step
    judged = start_run(
        sort_data, "tiny_sort_opd", *given, f"pretrain={teacher}", "max_steps=1", name="judged"
    ).finished()
    of_teacher = judged.metrics[0]["val/reward_mean"]
    assert abs(judged.metrics[1]["actor/teacher_kl_mean"]) < 1e-4
    assert of_teacher > 0.8 and whole.metrics[0]["val/reward_mean"] < 0.2
    assert whole.metrics[100]["val/reward_mean"] > of_teacher - 0.02
    assert whole.metrics[100]["actor/teacher_kl_mean"] < whole.metrics[1]["actor/teacher_kl_mean"] / 5

    saved = whole.output_dir / "checkpoints" / "step_000075"
    again = start_run(sort_data, "tiny_sort_opd", *given, f"resume_from_checkpoint={saved}", name="again")
    assert again.wait(900) == 0, again.text
    for step in (76, 90, 100):
        assert comparable(again.metrics[step]) == comparable(whole.metrics[step])


def test_beside_a_reward_each_domain_has_its_teacher(
    sort_data: Path, teacher: Path, start_run: Callable[..., Run]
) -> None:
    section = f"{{model_args: {{model_name_or_path: {teacher}, dtype: fp32}}, device_mapping: [0], "
    section += "strategy_args: {strategy_name: hf_infer}, infer_batch_size: 128}"
    run = start_run(
        sort_data, "tiny_sort_opd", "is_pure_opd=false", "use_opd=true", "opd_kl_coef=0.2", "teacher=null",
        f"teachers={{sort: {section}, other: {section}}}", "+rewards.other={reward: none}", "max_steps=2",
        "eval_steps=-1", "save_steps=-1",
    ).finished()  # fmt: skip
    assert run.metrics[2]["actor/teacher_kl_mean"] > 0 and run.metrics[2]["actor/advantage_abs_mean"] > 0
