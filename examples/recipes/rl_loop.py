"""Reinforcement learning in one file: a model learns to sort digits, and this loop looks on.

    python examples/recipes/rl_loop.py        # two minutes on two cores; the model is made first, without a download

The reward is a function of this file. The loop prints samples, saves what is best on held-out prompts, and stops early.
"""

import os
import subprocess
import sys
from pathlib import Path

import roll

TASK = Path(os.environ.get("TINY_SORT_DIR", "output/tiny-sort"))
PREPARE = Path(__file__).resolve().parents[1] / "tiny-sort" / "prepare.py"
STEPS = int(os.environ.get("STEPS", "40"))

KEYS = {
    "exp_name": "recipe_rl_loop",
    "pretrain": TASK / "model",
    "num_gpus_per_node": 2,  # without GPUs: two slots
    "max_steps": STEPS,
    "eval_steps": 10,
    "save_steps": 0,  # the loop saves
    "overwrite_output_dir": True,
    "algorithm": "grpo",
    "rollout_batch_size": 32,  # prompts x 8 answers = one update
    "num_return_sequences_in_group": 8,
    "prompt_length": 32,
    "response_length": 12,
    "actor_train": {
        "model_args": {"dtype": "fp32", "disable_gradient_checkpointing": True},
        "training_args": {
            "learning_rate": 1e-3,  # of a model this small; 1e-6 is usual
            "per_device_train_batch_size": 64,
            "gradient_accumulation_steps": 4,
        },
        "data_args": {"file_name": TASK / "train.jsonl"},
        "strategy_args": {"strategy_name": "deepspeed_train"},
        "device_mapping": [0],
    },
    "actor_infer": {
        "model_args": {"dtype": "fp32"},
        "strategy_args": {"strategy_name": "hf_infer"},
        "device_mapping": [1],
    },
    "validation": {"data_args": {"file_name": TASK / "test.jsonl"}},
}


def sorted_digits(sample) -> float:
    """1 for the digits of the prompt in order, between <answer> and </answer>."""
    return float(sample.response_text.strip() == f"<answer>{sample.ground_truth}</answer>")


def main() -> None:
    subprocess.run([sys.executable, PREPARE, "--out", TASK], check=True)  # nothing where it is there already
    run = roll.start(KEYS, reward=sorted_digits)
    best = 0.0
    for step in run:
        if step.number % 10 == 0:
            sample = step.samples[0]
            print(f"{sample['ground_truth']}: {sample['response_text']} earns {sample['reward']}")
        accuracy = step.metrics.get("val/reward_mean", 0.0)
        if accuracy > best:
            best = accuracy
            print(f"{accuracy:.3f} of the held-out prompts are sorted:", run.save())
        if best > 0.95:
            run.stop()
    print("reward by step:", run.metrics.column("rollout/reward_mean"))


if __name__ == "__main__":
    main()
