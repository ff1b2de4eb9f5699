"""Every kind of run has the rows that its operators leave: prompts, conversations, pairs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from roll.configs.plan.batch_plan import build_plan
from roll.datasets.preferences import load_pairs
from roll.pipeline.distill.distill_config import DistillConfig
from roll.pipeline.distill.distill_pipeline import DistillPipeline
from roll.pipeline.dpo.dpo_config import DPOConfig
from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline
from roll.pipeline.rows.row_config import row_plan
from roll.pipeline.rows.row_sources import columns, rows_of
from roll.pipeline.sft.sft_config import SFTConfig
from roll.pipeline.sft.sft_pipeline import SFTPipeline
from tests.helpers.configs import config

LONGEST = {"name": "length", "args": {"part": "response", "max": 3}}


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_prompts_of_rlvr(tmp_path: Path, tiny_model_dir: Path) -> None:
    prompts = ("12", "34", "12", "56", "5678")
    train = write(tmp_path / "train.jsonl", *({"prompt": text, "ground_truth": text} for text in prompts))
    val = write(tmp_path / "val.jsonl", {"prompt": "56", "ground_truth": "56"})
    operators = ["deduplicate", "contamination", {"name": "length", "args": {"unit": "tokens", "max": 2}}]
    made = config(
        {
            "pretrain": str(tiny_model_dir),
            "actor_train.data_args.file_name": train,
            "actor_train.data_args.operators": operators,
            "validation": {"data_args": {"file_name": val}},
            "output_dir": str(tmp_path / "out"),
        }
    )
    run = RLVRPipeline(made, build_plan(made))
    run.prepare(None)
    run.loop.close()
    drawn = [str(task.payload["prompt"]) for task in run.source.next_tasks(2)]
    assert sorted(drawn) == ["12", "34"]
    assert [[task.payload["prompt"] for task in tasks] for tasks in run.validation_tasks] == [["56"]]


def test_conversations(tmp_path: Path, tiny_model_dir: Path) -> None:
    talk = [{"role": "user", "content": "31"}, {"role": "assistant", "content": "13"}]
    rows = [{"messages": talk}, {"messages": [*talk, *talk[:1], {"role": "assistant", "content": "12345"}]}]
    file = write(tmp_path / "train.jsonl", *rows)
    made = SFTConfig.model_validate(
        {
            "pretrain": str(tiny_model_dir),
            "sft_train": {
                "model_args": {"model_name_or_path": str(tiny_model_dir)},
                "strategy_args": {"strategy_name": "deepspeed_train"},
                "data_args": {"file_name": file, "operators": [LONGEST]},
            },
            "output_dir": str(tmp_path / "out"),
        }
    )
    chosen, held_out = SFTPipeline(made, row_plan(made)).load_rows()
    assert len(chosen) == 1 and held_out is None


def test_rows_of_a_student(tmp_path: Path, tiny_model_dir: Path) -> None:
    file = write(tmp_path / "train.jsonl", {"question": "31", "answer": "13"}, {"question": "31", "answer": "1234"})
    model = {"model_args": {"model_name_or_path": str(tiny_model_dir)}}
    strategies = {"student": "deepspeed_train", "teacher": "hf_infer"}
    roles = {role: {**model, "strategy_args": {"strategy_name": name}} for role, name in strategies.items()}
    data_args = {"file_name": file, "operators": [LONGEST]}
    made = DistillConfig.model_validate(
        {**roles, "student": {**roles["student"], "data_args": data_args}, "output_dir": str(tmp_path / "out")}
    )
    chosen, _ = DistillPipeline(made, row_plan(made)).load_rows()
    assert len(chosen) == 1


def test_pairs(tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = [{"prompt": "31", "chosen": "13", "rejected": "31"}, {"prompt": "31", "chosen": "13", "rejected": "3131"}]
    file = write(tmp_path / "train.jsonl", *pairs)
    made = DPOConfig.model_validate(
        {
            "sequence_length": 64,
            "actor_train": {"data_args": {"file_name": file, "operators": [LONGEST]}},
            "validation": {"data_args": {"file_name": file}},
        }
    )
    chosen, held_out = rows_of(made, load_pairs, columns(made), tiny_tokenizer)
    assert held_out is not None and len(chosen) == 2 and len(held_out) == 4  # rows, two of a pair
    assert np.array_equal(chosen.input_ids, held_out.select(np.arange(2)).input_ids)
