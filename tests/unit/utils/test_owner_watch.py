"""Ends of processes that are no children."""

import gc
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from roll.utils.background import on_exit


@pytest.fixture
def many_files() -> Iterator[None]:
    """So many open files that the next one has a number above 1024, beyond which `select` does not go."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip("this user may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    gc.collect()  # it would close meanwhile what other tests left open, and give their numbers back
    opened = [os.open(os.devnull, os.O_RDONLY)]
    while opened[-1] < 1100:
        opened.append(os.dup(opened[0]))
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_end_is_noticed_by_a_process_with_many_open_files_and_its_descriptor_is_closed(many_files: None) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told = threading.Event()
    on_exit(process.pid, told.set)
    (descriptor,) = descriptors_of(process.pid)
    assert descriptor > 1024
    assert not told.is_set()
    process.kill()
    assert told.wait(60)
    assert descriptors_of(process.pid) == []
    assert process.wait(60) == -9


def test_what_is_gone_already_is_told_at_once() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    told: list[str] = []
    on_exit(process.pid, lambda: told.append("gone"))
    assert told == ["gone"]


def descriptors_of(pid: int) -> list[int]:
    """Of this process, for another one that has not been waited for."""
    found = []
    for file in Path("/proc/self/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            if f"Pid:\t{pid}\n" in file.read_text():
                found.append(int(file.name))
    return found
