"""What a run of the tests records of itself: seconds by file."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
CONFTEST = """
from pathlib import Path
from tests.helpers import durations
durations.PAGE = Path("durations.json")
durations.REPOSITORY = Path(".")
durations.read.__defaults__ = (durations.PAGE,)
def pytest_configure(config):
    config.addinivalue_line("markers", "slow: of a shard")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(durations.Recorder())
"""
TESTS = """
import time
import pytest
@pytest.fixture
def late(): time.sleep(1)
def test_a(late): time.sleep(0.6)
@pytest.mark.slow
def test_b(): time.sleep(0.3)
"""
KNOWN = {
    "files": {
        "test_it.py": {"gate": {"s": 100}, "slow": {"s": 100}},
        "test_gone.py": {"gate": {"s": 1}},
        "test_other.py": {"slow": {"s": 7}},
    }
}


def run(folder: Path, tests: str, *arguments: str) -> dict[str, Any]:
    for name, text in (("conftest.py", CONFTEST), ("test_it.py", tests), ("test_other.py", "")):
        (folder / name).write_text(text)
    (folder / "durations.json").write_text(json.dumps(KNOWN))
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run([*command, *arguments, "test_it.py"], cwd=folder, env=environment, check=False, capture_output=True)
    assert [path.name for path in folder.glob("*.json")] == ["durations.json"]
    return json.loads((folder / "durations.json").read_text())


def test_a_run_replaces_what_is_known_of_its_files_and_leaves_the_rest(tmp_path: Path) -> None:
    found = run(tmp_path, TESTS, "-n", "1")
    gate, slow = found["files"]["test_it.py"]["gate"], found["files"]["test_it.py"]["slow"]
    assert 1.6 <= gate["s"] < 100 and 0.3 <= slow["s"] < 100
    assert found["files"].keys() == {"test_it.py", "test_other.py"}
    assert found["files"]["test_other.py"] == KNOWN["files"]["test_other.py"]
