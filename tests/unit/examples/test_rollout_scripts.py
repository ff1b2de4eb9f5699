"""The scripts of ROLL that only sample: what they start measures, and nothing learns."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("kind", "example"), [("rlvr", "tiny-sort/tiny_sort"), ("agentic", "tiny-frozen-lake/tiny_frozen_lake")]
)
def test_a_rollout_script_starts_what_measures_alone(kind: str, example: str, tmp_path: Path) -> None:
    folder, _, name = example.partition("/")
    script = REPOSITORY / "examples" / f"start_{kind}_rollout_pipeline.py"
    words = ["--config_path", folder, "--config_name", name, "--dry_run", "--elsewhere"]
    done = subprocess.run(
        [sys.executable, str(script), *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "actor_infer" in done.stdout and "actor_train" not in done.stdout
