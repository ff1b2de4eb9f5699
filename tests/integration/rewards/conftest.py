"""A judge that runs answers in the sandbox of this machine."""

import pytest

from roll.rewards.code.languages import find_python
from roll.rewards.code.local import LocalJudge
from roll.utils.sandbox.backends import SandboxUnavailable, find_means
from roll.utils.sandbox.job import Limits

LIMITS = Limits(cpu_s=20, wall_s=300, memory_mb=512, disk_mb=8, output_bytes=100_000, threads=32)


@pytest.fixture(scope="session")
def judge() -> LocalJudge:
    python = find_python()
    try:
        return LocalJudge(find_means(*python.shown), python, LIMITS, total_s=3000)
    except SandboxUnavailable as why:
        pytest.skip(str(why))
