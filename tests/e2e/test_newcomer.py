"""A newcomer: a checkout and an environment made for this test, as docs/tutorial.md says, and that page's commands in
another folder, whose run is killed halfway."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.pages import DOCS
from tests.helpers.runs import REPOSITORY, START_LIMIT_S, Run
from tests.helpers.tutorial import RUN, START, check_outcome, follow, in_shell

INSTALL = "make test-environment"
INSTALL_LIMIT_S = 1800

pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_LIMIT_S + 5 * START_LIMIT_S)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """With a checkout of the newest commit, and its environment of 4 GB, which goes with the test. Skips where pip
    reaches no packages at all."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("these files are no checkout, so there is nothing to clone")
    asked = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path / "asked"), "packaging"]
    reached = subprocess.run(asked, capture_output=True, text=True, check=False)
    if reached.returncode:
        pytest.skip(f"pip reaches no packages here: {reached.stderr[-300:]}")
    home = tmp_path / "home"
    home.mkdir()
    in_shell(f"git clone -q {REPOSITORY} roll", home, os.environ)
    in_shell(INSTALL, home / "roll", own_variables())
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def environment(home: Path) -> Iterator[dict[str, str]]:
    """Of a user in whose shell the checkout's environment is active, and who knows of no other."""
    path = f"{home / 'roll' / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as temporary:  # short: Ray's sockets go below
        yield own_variables() | {"HOME": str(home), "PATH": path, "TMPDIR": temporary}


def own_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def test_the_page_names_the_command_that_makes_the_environment() -> None:
    assert f"`{INSTALL}`" in (DOCS / "tutorial.md").read_text(encoding="utf-8")


def test_a_newcomer_gets_from_a_clone_to_a_model_through_a_killed_run(
    tmp_path: Path, home: Path, environment: dict[str, str]
) -> None:
    """The start after the kill is the page's own command once more: it goes on from the checkpoint of step 10."""
    folder, checkout = tmp_path / "mine", home / "roll"
    folder.mkdir()
    (imported,) = in_shell("python -c 'import roll.commands.table as c; print(c.__file__)'", folder, environment)
    assert Path(imported) == checkout / "roll" / "commands" / "table.py"
    told: list[str] = []

    def kill_the_first_run(command: str) -> None:
        told.append(command)
        if command == START:
            kill_after_step(12, command, folder, environment)

    printed = follow(folder, environment, kill_the_first_run)
    assert told.count(START) == 1
    assert any("resuming from" in line and line.endswith("step_000010") for line in printed[START])
    check_outcome(folder, printed)
    assert in_shell("git status --porcelain", checkout, os.environ) == [], "nothing is left in the checkout"


def kill_after_step(step: int, command: str, folder: Path, environment: dict[str, str]) -> None:
    """As the kernel does where memory ends: without a word before, the driver alone."""
    log = folder.parent / "killed.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command.split(), cwd=folder, env=environment, stdout=stream, stderr=subprocess.STDOUT, text=True
        )
    run = Run(process, folder / RUN, log, mark="", temporary=Path(environment["TMPDIR"]))
    try:
        run.wait_for_step(step)
    finally:
        process.kill()
    assert run.wait() == -signal.SIGKILL
    assert step in run.metrics and 20 not in run.metrics, "it was killed halfway"
