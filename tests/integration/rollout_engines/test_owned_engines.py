"""An engine with two workers, in a process of its own that is killed at the end."""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

SECONDS_TO_END = 20


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_two_workers_agree_with_the_model_and_end_with_their_owner(
    engine: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """Log-probs at the start and after an update by every route; then the owner gets SIGKILL and cleans up nothing."""
    if find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    owner = subprocess.run(
        [sys.executable, "-m", "tests.integration.rollout_engines.owner", engine, str(tiny_model_dir), str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert owner.returncode == -9, owner.stderr[-3000:]
    report = json.loads(next(line for line in owner.stdout.splitlines() if line.startswith("{")))
    assert report["receivers"] == 2
    assert set(report["differences"]) == {"start", "memory", "broadcast", "file"}
    assert max(report["differences"].values()) < 1e-5
    assert len(report["pids"]) >= 3  # the engine and two workers

    deadline = time.monotonic() + SECONDS_TO_END
    while alive := [pid for pid in report["pids"] if is_alive(pid)]:
        assert time.monotonic() < deadline, f"still there: {alive}"
        time.sleep(0.2)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
