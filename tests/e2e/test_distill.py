"""Distillation as a user starts it: a student reaches its teacher, who has learnt the task from its answers; and a run
that is resumed goes on bit for bit, whatever trains and whoever teaches."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.helpers.runs import Run, comparable, run_starter

pytestmark = pytest.mark.slow

SHORT = (
    "max_steps=4", "eval_steps=2", "save_steps=2", "student.training_args.warmup_steps=0",
    "student.training_args.gradient_accumulation_steps=1",
)  # fmt: skip
MEGATRON = (
    "student.strategy_args={strategy_name: megatron_train, strategy_config: {}}",
    "student.model_args.disable_gradient_checkpointing=false",
    "logits_topk=16",
    "teacher.strategy_args={strategy_name: megatron_infer, strategy_config: {}}",
)
FSDP2 = (
    "student.strategy_args={strategy_name: fsdp2_train, strategy_config: {}}", "num_gpus_per_node=3",
    "student.device_mapping=[0,1]", "teacher.device_mapping=[2]", "kd_objective=adaptive_kl",
    "student.training_args.per_device_train_batch_size=32",
)  # fmt: skip


def accuracy(model_dir: Path, data: Path) -> float:
    """Greedy, of the held-out prompts."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    rows = [json.loads(line) for line in (data / "test.jsonl").read_text().splitlines()]
    chats = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    given = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        found = model.generate(**given, max_new_tokens=6, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    answers = tokenizer.batch_decode(found[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(answer == row["ground_truth"] for answer, row in zip(answers, rows, strict=True)) / len(rows)


@pytest.fixture(scope="module")
def teacher(sort_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What fine-tuning makes of the demo's model."""
    with run_starter(tmp_path_factory.mktemp("teacher")) as start:
        run = start(sort_data, "tiny_sort_sft", "eval_steps=-1", pipeline="sft").finished()
        return run.output_dir / "checkpoints" / "step_000060" / "hf_model"


def test_a_student_is_as_good_as_its_teacher(sort_data: Path, teacher: Path, start_run: Callable[..., Run]) -> None:
    run = start_run(sort_data, "tiny_sort_distill", f"teacher_pretrain={teacher}", pipeline="distill").finished()
    before, after = run.metrics[1]["train/divergence_mean"], run.metrics[60]["train/divergence_mean"]
    assert after < before / 20
    of_teacher, of_student = (
        accuracy(path, sort_data) for path in (teacher, run.output_dir / "checkpoints" / "step_000060" / "hf_model")
    )
    assert of_teacher > 0.8 and accuracy(sort_data / "model", sort_data) < 0.2
    assert of_student > of_teacher - 0.02, (of_student, of_teacher)
    assert "step 60/60  loss " in run.text and "  divergence " in run.text


@pytest.mark.parametrize("changed", [(), MEGATRON, FSDP2], ids=["deepspeed", "megatron", "fsdp2"])
def test_it_goes_on_from_a_checkpoint_bit_for_bit(
    changed: tuple[str, ...], sort_data: Path, teacher: Path, start_run: Callable[..., Run]
) -> None:
    given = (*SHORT, *changed, f"teacher_pretrain={teacher}")
    whole = start_run(sort_data, "tiny_sort_distill", *given, pipeline="distill").finished()
    saved = whole.output_dir / "checkpoints" / "step_000002"
    again = start_run(
        sort_data, "tiny_sort_distill", *given, f"resume_from_checkpoint={saved}", pipeline="distill", name="again"
    ).finished()
    assert whole.metrics[4]["train/divergence_mean"] < whole.metrics[1]["train/divergence_mean"]
    for step in (3, 4):
        assert comparable(again.metrics[step]) == comparable(whole.metrics[step])
