"""The demo's run from Python: the keys of tiny_sort.yaml, with a reward of this file. It is called as the scripts of
examples/ are, by tests/e2e/test_python.py; a run that is left after its first step goes before it."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import yaml

import roll
from roll.rewards.base import RewardResult

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DATA = Path(os.environ["TINY_SORT_DIR"])
WORDS = dict(word.split("=", 1) for word in sys.argv if "=" in word)


def sorted_digits(sample: Any) -> RewardResult:
    found = re.search("<answer>(.*)</answer>", sample.response_text, re.DOTALL)
    score = float(found is not None and found[1].strip() == sample.ground_truth)
    return RewardResult(score, {"answer_found": float(found is not None)})


def keys() -> dict[str, Any]:
    tree = yaml.safe_load((EXAMPLES / "tiny-sort/tiny_sort.yaml").read_text())
    tree["actor_train"]["strategy_args"] = {
        "strategy_name": "deepspeed_train",
        "strategy_config": yaml.safe_load((EXAMPLES / "config/deepspeed_zero.yaml").read_text())["deepspeed_zero"],
    }
    for section in (tree["actor_train"], tree["validation"]):
        del section["data_args"]
    for key in ("defaults", "tiny_sort_dir", "pretrain", "rewards"):
        del tree[key]
    return tree | {name: yaml.safe_load(value) for name, value in WORDS.items()}


given: dict[str, Any] = {
    "model": DATA / "model",
    "data": DATA / "train.jsonl",
    "eval_data": DATA / "test.jsonl",
    "reward": {"sort": sorted_digits},
}
elsewhere = f"{WORDS['output_dir']}-left"
for step in roll.start(**given, **keys() | {"output_dir": elsewhere, "logging_dir": f"{elsewhere}/logs"}):
    print("left after step", step.number)
    break
done = roll.train(**given, **keys())
print("the run is over:", done.exit_code, done.metrics[-1]["step"])
