"""The way into the sandbox that this machine has, and jobs of a few lines of Python."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from roll.utils.sandbox.backends import SandboxUnavailable, find_means
from roll.utils.sandbox.job import Job, Limits, Namespaces, View, view
from roll.utils.sandbox.process import Finished, run

PYTHON = os.path.realpath(sys.executable)
LIBRARY = str(Path(os.__file__).parent)
LIMITS = Limits(cpu_s=20, wall_s=300, memory_mb=512, disk_mb=8, output_bytes=100_000, threads=32)

Run = Callable[..., Finished]


def see_python() -> View:
    return view(LIBRARY, PYTHON)


def python_job(code: str, *arguments: str, limits: Limits = LIMITS) -> Job:
    command = (PYTHON, "-s", "-S", "-B", "/box/job.py", *arguments)
    return Job(command, see_python(), limits, {"job.py": code.encode()})


@pytest.fixture(scope="session")
def means() -> Namespaces:
    try:
        return find_means(LIBRARY, PYTHON)
    except SandboxUnavailable as why:
        pytest.skip(str(why))


@pytest.fixture
def run_python(means: Namespaces) -> Run:
    """`run_python(code, *arguments, limits=..., stdin=...)`"""

    def run_it(code: str, *arguments: str, limits: Limits = LIMITS, stdin: bytes = b"") -> Finished:
        return partial(run, means=means, stdin=stdin)(python_job(code, *arguments, limits=limits))

    return run_it
