"""Fine-tuning in one file: a model learns to sort digits from right answers, until it no longer gets better.

    python examples/recipes/sft_loop.py       # two minutes on two cores; the model is made first, without a download

Rows are made here. The loop ends the run when the loss on held-out rows has not fallen twice in a row.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import roll

TASK = Path(os.environ.get("TINY_SORT_DIR", "output/tiny-sort"))
PREPARE = Path(__file__).resolve().parents[1] / "tiny-sort" / "prepare.py"
STEPS = int(os.environ.get("STEPS", "60"))

KEYS = {
    "pipeline": "sft",
    "exp_name": "recipe_sft_loop",
    "num_gpus_per_node": 1,  # without GPUs: a slot
    "max_steps": STEPS,
    "eval_steps": 10,
    "save_steps": STEPS,
    "overwrite_output_dir": True,
    "sequence_length": 48,
    "prompt_key": "prompt",
    "response_key": "answer",
    "sft_train": {
        "model_args": {"dtype": "fp32", "disable_gradient_checkpointing": True},
        "training_args": {
            "learning_rate": 2e-3,  # of a model this small; 1e-5 is usual
            "per_device_train_batch_size": 64,
            "gradient_accumulation_steps": 2,
        },
        "strategy_args": {"strategy_name": "deepspeed_train"},
        "device_mapping": [0],
    },
}


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """Prompts of four digits, and the digits in order."""
    rng = random.Random(seed)
    prompts = ["".join(rng.choices("0123456789", k=4)) for _ in range(count)]
    return [{"prompt": prompt, "answer": f"<answer>{''.join(sorted(prompt))}</answer>"} for prompt in prompts]


def main() -> None:
    subprocess.run([sys.executable, PREPARE, "--out", TASK], check=True)  # nothing where it is there already
    train, held_out = rows(4000, seed=1), rows(400, seed=2)
    run = roll.start(KEYS, model=TASK / "model", data=train, eval_data=held_out)
    losses: list[float] = []
    for step in run:
        if "val/nll_mean" in step.metrics:
            losses.append(step.metrics["val/nll_mean"])
            print(f"step {step.number}: held-out loss {losses[-1]:.4f}")
        if len(losses) > 2 and min(losses[-2:]) > losses[-3]:
            print("It does not fall any more.")
            run.stop()
    print("model:", roll.open(run.output_dir).model)


if __name__ == "__main__":
    main()
