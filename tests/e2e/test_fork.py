"""`roll fork`: a run from a checkpoint of another takes the other's steps."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from roll.run.tracking.local import read_metrics
from tests.e2e.test_generated import YAML
from tests.helpers.runs import Run, comparable


@pytest.mark.slow
def test_a_fork_without_changes_takes_the_steps_of_the_first_run(
    tiny_model_dir: Path, start_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("reasoning_gym", reason="the tasks are those of the package reasoning-gym")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "tasks.yaml").write_text(YAML.format(model=tiny_model_dir))
    whole = start_run(tiny_model_dir, "tasks", name="whole", example=tmp_path)
    assert whole.wait() == 0, whole.text
    command = [sys.executable, "-m", "roll", "fork", f"{whole.output_dir}@1", "--out", str(tmp_path / "fork")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(read_metrics(tmp_path / "fork" / "logs" / "metrics.jsonl"))
    assert list(rows) == [2]
    assert comparable(rows[2] | {"step": 2}) == comparable(whole.metrics[2])
