"""`roll fork` without changes takes the steps that the first run took, bit for bit, in each kind of run."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.run.tracking.local import read_metrics
from tests.helpers.runs import Run, comparable

KINDS = {
    "grpo": ("sort", "tiny_sort", "rlvr"),
    "ppo": ("sort", "tiny_sort_ppo", "rlvr"),
    "lora": ("sort", "tiny_sort_lora", "rlvr"),
    "sft": ("sort", "tiny_sort_sft", "sft"),
    "dpo": ("sort", "tiny_sort_dpo", "dpo"),
    "rm": ("sort", "tiny_sort_rm", "rm"),
    "agentic": ("lake", "tiny_frozen_lake", "agentic"),
    "pictures": ("count", "tiny_count", "rlvr"),
}
FOLDERS = {"sort": "tiny-sort", "lake": "tiny-frozen-lake", "count": "tiny-count"}
ROUNDED = "train_infer/"  # of pictures: its last digits depend on which others the engine computes at once


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_without_changes_takes_the_steps_that_the_run_took(
    kind: str, request: pytest.FixtureRequest, start_run: Callable[..., Run], tmp_path: Path
) -> None:
    data, name, pipeline = KINDS[kind]
    length = ("max_steps=4", "eval_steps=-1", "save_steps=2")
    place = request.getfixturevalue(f"{data}_data")
    whole = start_run(place, name, *length, example=FOLDERS[data], pipeline=pipeline, name="whole")
    assert whole.wait() == 0, whole.text
    command = [sys.executable, "-m", "roll", "fork", f"{whole.output_dir}@2", "--out", str(tmp_path / "fork")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    forked = dict(read_metrics(tmp_path / "fork" / "logs" / "metrics.jsonl"))
    assert list(forked) == [3, 4]
    for step, row in forked.items():
        first, again = (
            {key: value for key, value in comparable(each).items() if kind != "pictures" or not key.startswith(ROUNDED)}
            for each in (whole.metrics[step], row | {"step": step})
        )
        assert again == first, f"step {step}"
