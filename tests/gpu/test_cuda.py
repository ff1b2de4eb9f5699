"""The suite under pytest: a test per check, which skips without CUDA. `python -m tests.gpu` writes a report as well."""

from pathlib import Path

import pytest

from tests.gpu.check import Check
from tests.gpu.machine import machine, visible_gpus
from tests.gpu.runner import Runner
from tests.gpu.table import CHECKS

GPUS = visible_gpus()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="no CUDA device here"), pytest.mark.timeout(900)]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_what_only_a_gpu_can_show(check: Check, tmp_path: Path) -> None:
    (outcome,) = Runner(machine("cuda", GPUS, check.packages), GPUS, tmp_path, print).run([check])
    if outcome.state == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.state == "passed", f"{outcome.reason}; its log: {tmp_path / check.name / 'log.txt'}"
