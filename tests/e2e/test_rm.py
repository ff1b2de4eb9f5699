"""Reward-model training as a user starts it: it learns, validates on held-out pairs, resumes bit for bit, and the role
of a reward model scores with what it saved."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from roll.configs.sections.cluster import WorkerConfig
from roll.distributed.strategy.base import RankContext
from roll.distributed.strategy.hf.score import HfScoreStrategy
from roll.types.batch import Rows
from roll.types.collate import pad
from tests.helpers.runs import Run, comparable

SHORT = (
    "max_steps=6", "eval_steps=6", "save_steps=3", "reward_train.training_args.warmup_steps=0",
    "num_gpus_per_node=2", "reward_train.device_mapping=[0,1]",  # an odd number of pairs is validated on two ranks
    "reward_train.training_args.per_device_train_batch_size=16",
)  # fmt: skip
MEGATRON = (
    "reward_train.strategy_args={strategy_name: megatron_train, strategy_config: {}}",
    "reward_train.model_args.disable_gradient_checkpointing=false",
)
FSDP2 = ("reward_train.strategy_args={strategy_name: fsdp2_train, strategy_config: {}}",)


def accuracy_of_the_role(model: Path, pairs: Path) -> float:
    """Of the role that scores sampled answers: prompt as it is asked, answer and its end token."""
    role = WorkerConfig.model_validate(
        {
            "strategy_args": {"strategy_name": "hf_infer"},
            "model_args": {"model_name_or_path": str(model), "dtype": "fp32"},
        }
    )
    scorer = HfScoreStrategy(role, RankContext("reward", 0, 1, 0, 0, torch.device("cpu"), head="sequence"))
    scorer.setup()
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = []
    for line in pairs.read_text().splitlines():
        row = json.loads(line)
        asked = [{"role": "user", "content": row["prompt"]}]
        before = str(tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False))
        for answer in (row["chosen"], row["rejected"]):
            ids.append(tokenizer(f"{before}{answer}{tokenizer.eos_token}", add_special_tokens=False)["input_ids"])
    rows = Rows.of(ids, [[True] * len(row) for row in ids])
    numbers = np.concatenate([n.numpy() for n in scorer.row_scores([pad(rows, np.arange(len(rows)))])])[:, 0]
    return float((numbers[::2] > numbers[1::2]).mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [(), MEGATRON, FSDP2],
    ids=["deepspeed", "megatron", "fsdp2"],
)
def test_it_learns_resumes_bit_for_bit_and_the_role_scores_with_it(
    strategy: tuple[str, ...], sort_data: Path, start_run: Callable[..., Run]
) -> None:
    whole = start_run(sort_data, "tiny_sort_rm", *SHORT, *strategy, pipeline="rm").finished()
    first, last = whole.metrics[0], whole.metrics[6]
    assert (first["val/accuracy"], first["val/loss"]) == pytest.approx((0.5, np.log(2)))  # a head of zeros
    assert last["val/loss"] < first["val/loss"] and last["val/accuracy"] > 0.55

    saved = whole.output_dir / "checkpoints"
    found = accuracy_of_the_role(saved / "step_000006" / "hf_model", sort_data / "test_pairs.jsonl")
    assert found == pytest.approx(last["val/accuracy"], abs=0.01)

    checkpoint = f"resume_from_checkpoint={saved / 'step_000003'}"
    again = start_run(sort_data, "tiny_sort_rm", *SHORT, *strategy, checkpoint, pipeline="rm", name="again").finished()
    for step in (4, 5, 6):
        assert comparable(again.metrics[step]) == comparable(whole.metrics[step])
