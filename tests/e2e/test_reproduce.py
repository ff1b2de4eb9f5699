"""The beginning of a recipe with a real model lies in the band that was measured."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from roll.reproduce.recipes import find_recipe
from tests.helpers.real_models import gguf_file
from tests.helpers.runs import REPOSITORY, START_LIMIT_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * START_LIMIT_S)]


def test_the_first_steps_of_sums_are_inside_the_band(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="the rows are made by reasoning-gym")
    if find_recipe("sums-135m").band is None:
        pytest.skip("the recipe has not been recorded")
    model = str(gguf_file("smollm2"))
    words = ["reproduce", "sums-135m", "--steps", "5", "--model", model, "--out", str(tmp_path), "save_steps=-1"]
    done = subprocess.run(
        [sys.executable, "-m", "roll", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Inside the band" in done.stdout
    shutil.rmtree(tmp_path)
