"""Runs from Python: the same numbers as the YAML's, two in one process, and the recipes of one file."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.runs import REPOSITORY, Run, comparable

SHORT = ("max_steps=3", "eval_steps=3", "save_steps=0")
SCRIPT = Path(__file__).with_name("python_run.py")
RECIPES = sorted((REPOSITORY / "examples/recipes").glob("*.py"))


@pytest.mark.slow
def test_the_second_run_of_a_script_has_the_metrics_of_the_yaml_bit_for_bit(
    sort_data: Path, start_run: Callable[..., Run]
) -> None:
    """The reward is a function of the script, and a run that is left after its first step goes before it."""
    called = start_run(sort_data, "tiny_sort", *SHORT, pipeline=SCRIPT, name="called")
    assert called.wait(900) == 0, called.text
    assert "left after step 1" in called.text and "the run is over: 0 3" in called.text
    called.assert_all_gone()
    written = start_run(sort_data, "tiny_sort", *SHORT, name="written").finished()
    assert [*called.metrics] == [*written.metrics] == [0, 1, 2, 3]
    for step in range(4):
        assert comparable(called.metrics[step]) == comparable(written.metrics[step])


@pytest.mark.slow
def test_ctrl_c_in_a_script_saves_the_step_and_leaves_no_process(
    sort_data: Path, start_run: Callable[..., Run]
) -> None:
    run = start_run(sort_data, "tiny_sort", "max_steps=500", "eval_steps=0", pipeline=SCRIPT)
    run.wait_for_step(2)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() in (-signal.SIGINT, 1), run.text  # 1 of Python once Ray was imported
    run.assert_all_gone()
    assert "KeyboardInterrupt" in run.text
    assert [path.name for path in (run.output_dir / "checkpoints").iterdir() if path.name.startswith("step_")]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_runs_from_another_folder(recipe: Path, sort_data: Path, tmp_path: Path) -> None:
    environment = os.environ | {"TINY_SORT_DIR": str(sort_data), "PYTHONPATH": str(REPOSITORY), "STEPS": "10"}
    done = subprocess.run(
        [sys.executable, recipe], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") > 1
    assert [*(tmp_path / "output").glob("recipe_*/logs/metrics.jsonl")]
