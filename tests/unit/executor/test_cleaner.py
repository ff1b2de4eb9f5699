"""The process that cleans up after a run."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from roll.distributed.executor import cleaner
from roll.distributed.executor.weight_sender import MemoryLane
from roll.distributed.strategy.weights import MemoryBucket, index_bucket


def written_in_a_run(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[MemoryLane, Path]:
    """A bucket in shared memory that nobody has read yet."""
    monkeypatch.setenv(cleaner.MARK, str(directory))
    lane, bucket = MemoryLane([0]), [("a", torch.ones(4))]
    source = lane.write(bucket, index_bucket(bucket), 0)[0]
    monkeypatch.delenv(cleaner.MARK)
    assert isinstance(source, MemoryBucket)
    return lane, Path(cleaner.SHARED_MEMORY) / source.segment


def test_shared_memory_that_a_run_left_is_removed_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = [tmp_path / f"roll-{tmp_path.name}-{name}" for name in ("mine", "other")]
    for directory in directories:
        directory.mkdir()
    (lane, mine), (other_lane, others) = (written_in_a_run(directory, monkeypatch) for directory in directories)
    try:
        assert mine.exists()
        command = [sys.executable, "-S", "-E", cleaner.__file__, str(directories[0])]
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=120)
        assert not mine.exists() and not directories[0].exists()
        assert others.exists() and directories[1].exists()
    finally:
        lane.close()
        other_lane.close()
