"""Which tests run, in what order, and how long: shards, cases that are slow, and a limit for all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import suite

REPOSITORY = Path(__file__).resolve().parents[3]
CONFTEST = """
import time
from pathlib import Path
from tests.helpers import suite
suite.GRACE_S, suite.END_S = 1, 120
class Watchdog(suite.Watchdog):
    def wait(self):
        while not (self.limit_s and Path("hangs").exists() and "test_it.py::test_hangs" in self.running):
            time.sleep(0.05)
def pytest_addoption(parser):
    parser.addoption("--part")
    parser.addoption("--limit", type=float, default=0)
def pytest_configure(config):
    config.addinivalue_line("markers", "slow: of a shard")
    config.addinivalue_line("markers", "gate(*ids): the others are slow")
    config.pluginmanager.register(suite.Selection(config.getoption("--part")))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Watchdog(config, config.getoption("--limit")))
"""
HANGING = """
import pathlib, time
def test_fails(): assert 1 == 2
def test_hangs():
    pathlib.Path("hangs").touch()
    time.sleep(1000)
"""
CASES = """
import pytest
@pytest.mark.gate("b", "c")
@pytest.mark.parametrize("case", ["a", "b", "c"])
def test_cases(case): pass
"""


def run(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [*command, *arguments, "test_it.py"],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("processes", [(), ("-n", "1")])
def test_at_the_limit_of_all_tests_what_was_running_is_named(tmp_path: Path, processes: tuple[str, ...]) -> None:
    done = run(tmp_path, HANGING, "--limit=4", *processes)
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert "STOPPED: all tests together may take 4 s; running at the end: test_it.py::test_hangs (for" in done.stdout
    told = "FAILED test_it.py::test_fails (call): test_it.py:3: AssertionError"
    assert done.stdout.index(told) < done.stdout.index("STOPPED"), "a failure is told when it happens"
    assert "assert 1 == 2" in done.stdout and "short test summary" in done.stdout, "and at the end"


def test_cases_that_the_gate_does_not_name_are_slow_and_it_names_no_others(tmp_path: Path) -> None:
    assert "2 passed, 1 deselected" in run(tmp_path, CASES, "-m", "not slow").stdout
    for processes in ((), ("-n", "1")):
        wrong = run(tmp_path, CASES.replace('"b"', '"d"', 1), *processes)
        assert wrong.returncode not in (0, 5)
        assert "test_cases: gate names ['d']; there are ['a', 'b', 'c']" in wrong.stdout


def test_files_that_share_ray_are_run_by_one_process() -> None:
    folder = "tests/integration/executor"
    assert suite.scope_of(f"{folder}/test_a.py::test_a") == suite.scope_of(f"{folder}/test_b.py::test_b[x]")
    assert suite.scope_of("tests/e2e/test_c.py::TestC::test_c") == "tests/e2e/test_c.py"


@pytest.mark.parametrize("shard", ["0/4", "5/4", "1/2", "one"])
def test_a_shard_that_there_is_not_is_refused(shard: str) -> None:
    with pytest.raises(pytest.UsageError, match="there are shards 1/4 to 4/4"):
        suite.Selection(shard)
