"""One process of a kind at a buffer, for as long as it lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from roll.errors import StorageError
from roll.features.experience.modes import ProcessLock

_SITS = """
import sys, time
from pathlib import Path
from roll.features.experience.modes import ProcessLock
lock = ProcessLock(Path(sys.argv[1]), "explore")
print("here", flush=True)
time.sleep(600)
"""


def test_a_second_explorer_is_refused_until_the_first_is_gone_and_a_trainer_is_not(tmp_path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", _SITS, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert first.stdout is not None and first.stdout.readline() == b"here\n"
        with pytest.raises(StorageError, match="another process with mode: explore is running"):
            ProcessLock(tmp_path, "explore")
        ProcessLock(tmp_path, "train").leave()
    finally:
        first.kill()
        first.communicate()
    ProcessLock(tmp_path, "explore").leave()


def test_a_seat_that_was_left_is_free(tmp_path: Path) -> None:
    lock = ProcessLock(tmp_path, "train")
    with pytest.raises(StorageError):
        ProcessLock(tmp_path, "train")
    lock.leave()
    ProcessLock(tmp_path, "train").leave()


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        ProcessLock(tmp_path / "file" / "buffer", "train")
