"""Forks of whole runs: one without changes takes the same steps to the bit, of whatever kind the run is."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.run.tracking.local import read_metrics
from tests.helpers.runs import Run, comparable

SHORT = ("max_steps=4", "eval_steps=-1", "save_steps=2")
KINDS = {
    "rlvr": ("sort_data", "tiny_sort", "rlvr"),
    "ppo": ("sort_data", "tiny_sort_ppo", "rlvr"),
    "lora": ("sort_data", "tiny_sort_lora", "rlvr"),
    "sft": ("sort_data", "tiny_sort_sft", "sft"),
    "dpo": ("sort_data", "tiny_sort_dpo", "dpo"),
    "reward model": ("sort_data", "tiny_sort_rm", "rm"),
    "distillation": ("sort_data", "tiny_sort_distill", "distill"),
    "agentic": ("lake_data", "tiny_frozen_lake", "agentic"),
    "pictures": ("count_data", "tiny_count", "rlvr"),
}
EXAMPLES = {"lake_data": "tiny-frozen-lake", "sort_data": "tiny-sort", "count_data": "tiny-count"}


def numbers(row: dict[str, float], kind: str) -> dict[str, float]:
    """What must be equal. Which episodes, or pictures, share a batch of the engine depends on the moment, and with it
    the last bits of its log-probs."""
    gone = "train_infer/" if kind in ("agentic", "pictures") else "time"
    return {name: value for name, value in comparable(row).items() if not name.startswith(gone)}


def weights(output: Path) -> dict[str, bytes]:
    """The models of the last checkpoint, by the paths of their files."""
    saved = output / "checkpoints" / "step_000004"
    return {str(path.relative_to(saved)): path.read_bytes() for path in saved.rglob("*.safetensors")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_without_changes_takes_the_steps_of_the_run_bit_for_bit(
    kind: str, start_run: Callable[..., Run], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fixture, name, pipeline = KINDS[kind]
    data = request.getfixturevalue(fixture)
    # a teacher that the student is at first: what it learns comes from the answers, too
    more = (f"teacher_pretrain={data}/model", "distill_loss_weight=0.5") if kind == "distillation" else ()
    whole = start_run(data, name, *SHORT, *more, example=EXAMPLES[fixture], pipeline=pipeline).finished()
    fork = tmp_path / "fork"
    command = [sys.executable, "-m", "roll", "fork", f"{whole.output_dir}@2", "--out", str(fork)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(read_metrics(fork / "logs" / "metrics.jsonl"))
    assert list(rows) == [3, 4]
    for step, row in rows.items():
        assert numbers(row | {"step": step}, kind) == numbers(whole.metrics[step], kind), f"step {step}"
    assert weights(fork) == weights(whole.output_dir) != {}
