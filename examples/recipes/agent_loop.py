"""An agent in one file: an environment of its own, in which a model has two tries to sort digits.

    python examples/recipes/agent_loop.py     # two minutes on two cores; the model is made first, without a download

An episode is a conversation: digits, an answer, and the digits again where the answer was wrong.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import roll
from roll.envs.base import Env, EnvStep

TASK = Path(os.environ.get("TINY_SORT_DIR", "output/tiny-sort"))
PREPARE = Path(__file__).resolve().parents[1] / "tiny-sort" / "prepare.py"
STEPS = int(os.environ.get("STEPS", "30"))

KEYS = {
    "exp_name": "recipe_agent_loop",
    "num_gpus_per_node": 2,  # without GPUs: two slots
    "max_steps": STEPS,
    "save_steps": STEPS,
    "overwrite_output_dir": True,
    "algorithm": "grpo",
    "rollout_batch_size": 128,  # episodes of a step = one update
    "prompt_length": 64,
    "sequence_length": 96,
    "train_env_manager": {"num_env_groups": 16, "group_size": 8},
    "custom_envs": {"SortTwice": {"max_steps": 2, "max_tokens_per_step": 12}},
    "actor_train": {
        "model_args": {"dtype": "fp32", "disable_gradient_checkpointing": True},
        "training_args": {
            "learning_rate": 1e-3,  # of a model this small
            "per_device_train_batch_size": 32,
            "gradient_accumulation_steps": 4,
        },
        "strategy_args": {"strategy_name": "deepspeed_train"},
        "device_mapping": [0],
    },
    "actor_infer": {
        "model_args": {"dtype": "fp32"},
        "strategy_args": {"strategy_name": "hf_infer"},
        "device_mapping": [1],
    },
}


class SortTwice(Env):
    """1 for a right answer at once, a half for one at the second try."""

    instruction = "Put the digits in order."
    reward_range = (0.0, 1.0)

    def reset(self, seed: int) -> str:
        self.digits = "".join(random.Random(seed).choices("0123456789", k=4))  # all chance comes from the seed
        self.tries = 0
        return self.digits

    def step(self, action: str) -> EnvStep:
        self.tries += 1
        right = "".join(sorted(self.digits)) == action.replace("<answer>", "").replace("</answer>", "").strip()
        reward = float(right) / self.tries
        return EnvStep(self.digits, reward, right, not right and self.tries == 2, {"success": float(right)})


def main() -> None:
    subprocess.run([sys.executable, PREPARE, "--out", TASK], check=True)  # nothing where it is there already
    for step in roll.start(KEYS, model=TASK / "model", env=SortTwice):
        print(f"step {step.number}: an episode earns {step.metrics['rollout/reward_mean']:.3f}")
        if step.number % 10 == 0:
            for turn in step.samples[0]["turns"]:
                print("   ", turn["observation"], "->", turn["response"])


if __name__ == "__main__":
    main()
