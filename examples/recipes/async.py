"""Asynchronous learning in one file: answers are sampled on one device while the policy learns on the other.

    python examples/recipes/async.py          # two minutes on two cores; the model is made first, without a download

The loop says how old the weights are that sampled, and how much of a step waits for the other side.
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
    "exp_name": "recipe_async",
    "pretrain": TASK / "model",
    "num_gpus_per_node": 2,  # without GPUs: two slots
    "max_steps": STEPS,
    "eval_steps": STEPS,
    "save_steps": STEPS,
    "overwrite_output_dir": True,
    "algorithm": "grpo",
    "async_generation_ratio": 1,  # another step is sampled while one trains
    "max_staleness": 2,  # no token is older than two steps
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


def sorted_digits(sample) -> float:
    """1 for the digits of the prompt in order, between <answer> and </answer>."""
    return float(sample.response_text.strip() == f"<answer>{sample.ground_truth}</answer>")


def main() -> None:
    subprocess.run([sys.executable, PREPARE, "--out", TASK], check=True)  # nothing where it is there already
    run = roll.start(KEYS, reward=sorted_digits)
    for step in run:
        told = {name: step.metrics.get(name, 0.0) for name in ("rollout/reward_mean", "rollout/staleness_mean")}
        waits = step.metrics.get("time/rollout_s", 0.0)
        print(f"step {step.number}:", *(f"{name} {value:.3f}" for name, value in told.items()), f"waits {waits:.2f} s")
    print("accuracy on held-out prompts:", run.metrics.column("val/reward_mean"))


if __name__ == "__main__":
    main()
