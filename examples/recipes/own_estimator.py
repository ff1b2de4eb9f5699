"""An estimator in one file: what an answer is worth, compared with the others to the same prompt, is a function here.

    python examples/recipes/own_estimator.py  # two minutes on two cores; the model is made first, without a download

The same run with GRPO's estimator comes second, so that the two can be compared.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import roll
from roll.algorithms.advantage import Attempts, estimator

TASK = Path(os.environ.get("TINY_SORT_DIR", "output/tiny-sort"))
PREPARE = Path(__file__).resolve().parents[1] / "tiny-sort" / "prepare.py"
STEPS = int(os.environ.get("STEPS", "40"))

KEYS = {
    "pretrain": TASK / "model",
    "num_gpus_per_node": 2,  # without GPUs: two slots
    "max_steps": STEPS,
    "eval_steps": STEPS,
    "save_steps": 0,
    "overwrite_output_dir": True,
    "rollout_batch_size": 32,  # prompts x 8 answers = one update
    "num_return_sequences_in_group": 8,
    "prompt_length": 32,
    "response_length": 12,
    "actor_train": {
        "model_args": {"dtype": "fp32", "disable_gradient_checkpointing": True},
        "training_args": {
            "learning_rate": 1e-3,  # of a model this small
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


@estimator(needs_groups=True)
def max_rl(attempts: Attempts, floor: float = 0.0) -> np.ndarray:
    """(reward - mean) / mean of the group: a right answer is worth the more, the rarer it is (MaxRL, 2602.02710)."""
    mean = attempts.group.mean
    learned = mean > floor
    return np.where(learned, (attempts.rewards - mean) / np.where(learned, mean, 1.0), 0.0)


def sorted_digits(sample) -> float:
    """1 for the digits of the prompt in order, between <answer> and </answer>."""
    return float(sample.response_text.strip() == f"<answer>{sample.ground_truth}</answer>")


def main() -> None:
    subprocess.run([sys.executable, PREPARE, "--out", TASK], check=True)  # nothing where it is there already
    for estimate in (max_rl, "grpo"):
        name = estimate if isinstance(estimate, str) else "max_rl"
        run = roll.start(KEYS, reward=sorted_digits, adv_estimator=estimate, exp_name=f"recipe_{name}").finish()
        print(f"{name}: accuracy on held-out prompts", run.metrics.column("val/reward_mean"))


if __name__ == "__main__":
    main()
