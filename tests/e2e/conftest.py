"""Data of the examples' whole runs, made once for all tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from filelock import FileLock

from tests.helpers.runs import REPOSITORY, Run, run_starter, shared_directory


@pytest.fixture(scope="session")
def sort_data(tmp_path_factory: pytest.TempPathFactory, sort_task: ModuleType) -> Path:
    """The demo's model and data, with the demo's own warm-up: made once for all test processes that run side by
    side."""
    shared = shared_directory(tmp_path_factory)
    with FileLock(shared / "tiny-sort.lock"):
        sort_task.prepare(shared / "tiny-sort", sort_task.Settings())  # does nothing the second time
    return shared / "tiny-sort"


@pytest.fixture(scope="session")
def varied_sort_dir(tmp_path_factory: pytest.TempPathFactory, sort_task: ModuleType) -> Path:
    """The demo's task with 3 to 12 digits, so that prompts and answers differ in length; warmed up briefly, and made
    once in the same way."""
    directory = shared_directory(tmp_path_factory) / "tiny-sort-varied"
    settings = sort_task.Settings(min_digits=3, max_digits=12, steps=50, batch_size=64, prompts_per_length=400)
    with FileLock(f"{directory}.lock"):
        sort_task.prepare(directory, settings)
    return directory


@pytest.fixture(scope="session")
def shared_heads_data(tmp_path_factory: pytest.TempPathFactory, sort_task: ModuleType) -> Path:
    """The demo's data and a model with two key-value heads, which two tensor-parallel ranks can share."""
    directory = tmp_path_factory.mktemp("tiny-sort-heads")
    sort_task.prepare(directory, sort_task.Settings(num_kv_heads=2))
    return directory


@pytest.fixture(scope="session")
def count_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that has not looked yet and its pictures, made once in the same way."""
    shared = shared_directory(tmp_path_factory)
    with FileLock(shared / "tiny-count.lock"):
        prepare = REPOSITORY / "examples" / "tiny-count" / "prepare.py"
        subprocess.run([sys.executable, str(prepare), "--out", str(shared / "tiny-count")], check=True)
    return shared / "tiny-count"


@pytest.fixture(scope="session")
def lake_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agentic demo's model, with the demo's own warm-up, made once in the same way."""
    shared = shared_directory(tmp_path_factory)
    command = [sys.executable, "examples/tiny-frozen-lake/prepare.py", "--out", str(shared / "tiny-frozen-lake")]
    with FileLock(shared / "tiny-frozen-lake.lock"):
        subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return shared / "tiny-frozen-lake"


@pytest.fixture
def start_run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    with run_starter(tmp_path) as start:
        yield start
