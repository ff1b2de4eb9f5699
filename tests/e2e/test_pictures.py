"""Whole runs of examples/tiny-count: a model that sees learns to look, and does not where there is nothing to see."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY, Run, comparable
from tests.e2e.test_rlvr import assert_engine_and_trainer_agree

StartRun = Callable[..., Run]
SHORT = ("max_steps=3", "eval_steps=0", "save_steps=-1", "actor_train.training_args.warmup_steps=1")


def start(start_run: StartRun, data: Path, *overrides: str, config: str = "tiny_count", name: str = "run") -> Run:
    return start_run(data, config, *overrides, example="tiny-count", name=name)


def test_engine_and_trainer_see_the_same_pictures(count_data: Path, start_run: StartRun) -> None:
    """And a picture that is broken fails its task, is counted, and ends nothing."""
    rows = [json.loads(line) for line in (count_data / "train.jsonl").read_text().splitlines()[:64]]
    broken = count_data / "pictures" / "broken.png"
    broken.write_bytes((count_data / rows[0]["images"][0]).read_bytes()[:200])
    rows[5]["images"] = [str(broken.relative_to(count_data))]
    text_row = {"prompt": "say 1", "ground_truth": "1", "tag": "count"}  # rows of text stand among them
    file = count_data / "some.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *[text_row] * 8]))
    run = start(start_run, count_data, *SHORT, f"actor_train.data_args.file_name={file}", "max_failed_fraction=0.5")
    assert run.wait() == 0, run.text
    assert_engine_and_trainer_agree(run)
    records = "".join(path.read_text() for path in (run.output_dir / "rollouts").glob("step_*.jsonl"))
    assert '"form": "file"' in records
    assert sum(row.get("rollout/failed_fraction", 0) for row in run.metrics.values()) > 0, sorted(run.metrics[1])
    run.assert_all_gone()


@pytest.mark.slow
@pytest.mark.parametrize("config", ["tiny_count", "tiny_count_vllm", "tiny_count_fsdp2"])
def test_it_learns_to_look(config: str, count_data: Path, start_run: StartRun) -> None:
    """From chance, one in four, to above .9 on pictures that it has not seen."""
    run = start(start_run, count_data, config=config)
    assert run.wait(1200) == 0, run.text
    assert run.metrics[0]["val/reward_mean"] < 0.35
    assert run.metrics[125]["val/reward_mean"] > 0.9
    assert_engine_and_trainer_agree(run, 1e-3)
    run.assert_all_gone()


@pytest.mark.slow
def test_blind_it_stays_at_chance(tmp_path: Path, start_run: StartRun) -> None:
    command = [sys.executable, "examples/tiny-count/prepare.py", "--out", str(tmp_path / "blind"), "--blind"]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    run = start(start_run, tmp_path / "blind")
    assert run.wait(1200) == 0, run.text
    assert 0.15 < run.metrics[125]["val/reward_mean"] < 0.35


@pytest.mark.slow
def test_a_resumed_run_equals_it(count_data: Path, start_run: StartRun) -> None:
    steps = ("max_steps=6", "eval_steps=6", "actor_train.training_args.warmup_steps=1")
    whole = start(start_run, count_data, *steps, "save_steps=4", name="whole")
    assert whole.wait() == 0, whole.text
    checkpoint = whole.output_dir / "checkpoints" / "step_000004"
    again = start(start_run, count_data, *steps, "save_steps=-1", f"resume_from_checkpoint={checkpoint}", name="again")
    assert again.wait() == 0, again.text
    for step in (5, 6):
        assert learnt(again, step) == learnt(whole, step), f"step {step}"


def learnt(run: Run, step: int) -> dict[str, float]:
    """All but what tells engine and trainer apart: prompts reach the engine when their pictures are decoded, and its
    last digits depend on which others it computes at once."""
    return {name: value for name, value in comparable(run.metrics[step]).items() if not name.startswith("train_infer/")}
