"""What a shell is offered behind `roll`, as argcomplete asks for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

YAML = "examples/tiny-sort/tiny_sort.yaml"


@pytest.mark.parametrize(
    "line, offered",
    [
        ("roll pl", {"plan"}),
        ("roll plan --el", {"--elsewhere"}),
        ("roll explain gs", {"gspo"}),
        (f"roll run {YAML} actor_in", {"actor_infer."}),
        (f"roll run {YAML} rewards.", {"rewards.sort."}),
        (f"roll run {YAML} actor_train.strategy_args.strategy_name=fsdp2_t", {"fsdp2_train"}),
        (
            f"roll run {YAML} actor_train.training_args.lr_scheduler_type=co",
            {"constant", "constant_with_warmup", "cosine"},
        ),
        (f"roll plan {YAML} --defaults seed=1 --elsewhere rollout_b", {"rollout_batch_size="}),
        (f"roll doctor {YAML} rewards.", {"rewards.sort."}),
        ("roll chat --dt", {"--dtype"}),
        ("roll data check --tok", {"--tokenizer"}),
        ("roll run missing.yaml actor", set()),
        ("roll run .gitignore actor", set()),
    ],
)
def test_a_word_is_completed(line: str, offered: set[str], tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n\"'@><=;|&(:",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    subprocess.run([sys.executable, "-m", "roll", *line.split()[1:]], env=os.environ | asked, check=False, timeout=60)
    words = answer.read_text().split() if answer.exists() else []
    assert set(words) == offered
