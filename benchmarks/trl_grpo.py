"""The tiny-sort job in TRL's GRPOTrainer, for benchmarks/rlvr_step.py: same model, data, batch and settings. Needs trl.

python benchmarks/trl_grpo.py --data output/tiny-sort --steps 40
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

ANSWER = re.compile(r"<answer>(.*)</answer>")


class Clock(TrainerCallback):
    """Wall and CPU time at the end of every step."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []
        self.rewards: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.marks.append((time.perf_counter(), time.process_time()))

    def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
        if logs and "reward" in logs:
            self.rewards.append(logs["reward"])


def exact_match(completions: list[Any], ground_truth: list[str], **_: Any) -> list[float]:
    texts = [completion[0]["content"].strip() for completion in completions]
    matches = [ANSWER.fullmatch(text) for text in texts]
    return [float(m is not None and m[1] == truth) for m, truth in zip(matches, ground_truth, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in (arguments.data / "train.jsonl").read_text().splitlines()]
    dataset = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": row["prompt"]}], "ground_truth": row["ground_truth"]} for row in rows]
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as output:
        settings = GRPOConfig(
            output_dir=output,
            use_cpu=True,
            bf16=False,
            per_device_train_batch_size=256,
            num_generations=8,
            max_completion_length=12,
            learning_rate=1e-3,
            lr_scheduler_type="linear",
            warmup_steps=5,
            adam_beta2=0.99,
            weight_decay=0.0,
            max_grad_norm=1.0,
            beta=0.0,
            epsilon=0.2,
            loss_type="dapo",  # mean over all tokens of the batch
            scale_rewards="group",
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            max_steps=arguments.steps,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            disable_tqdm=True,
            seed=0,
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(arguments.data / "model", dtype=torch.float32),
            reward_funcs=exact_match,
            args=settings,
            train_dataset=dataset,
            processing_class=AutoTokenizer.from_pretrained(arguments.data / "model"),
            callbacks=[clock],
        )
        trainer.train()
    (wall_start, cpu_start), (wall_end, cpu_end) = clock.marks[4], clock.marks[-1]
    counted = len(clock.marks) - 5
    result = {
        "wall_s_per_step": (wall_end - wall_start) / counted,
        "cpu_s_per_step": (cpu_end - cpu_start) / counted,
        "reward_first_last": [sum(clock.rewards[:5]) / 5, sum(clock.rewards[-5:]) / 5],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
